"""Declared boosting: datasets, a label, parameters and a number of rounds, without a train function.

`make_boosting_spec` validates the arguments before any process starts. `BoostingLoop` is the function that workers run:
it reads the worker's rows, resumes from the newest checkpoint, and trains the remaining rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from paceline._core.arguments import bad_value, check_instance, check_int, join_or
from paceline._worker import context as worker_context
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import CheckpointConfig
from paceline.train.session import get_checkpoint, get_dataset_shard
from paceline.train.trees.reports import TreeReportCallback
from paceline.train.trees.tables import Categories, FeatureTable, make_table, merge_categories, to_columns

TRAIN = "train"
_DEFAULT_ROUNDS = 10


@dataclass(frozen=True)
class BoostingSpec:
    label_column: str
    params: Mapping[str, Any]
    num_boost_round: int
    train_kwargs: Mapping[str, Any]
    datasets: tuple[str, ...]
    """The names of all datasets, with the training set first."""
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)

    @property
    def checkpoint_frequency(self) -> int:
        """The number of rounds between checkpoints. By default a crash loses at most a tenth of the work."""
        return self.checkpoint_config.checkpoint_frequency or max(1, self.num_boost_round // 10)

    @property
    def checkpoint_at_end(self) -> bool:
        return self.checkpoint_config.checkpoint_at_end is not False


class BoostingLibrary:
    """What differs between libraries: what users may declare, and how a worker trains."""

    name: ClassVar[str]
    train_kwargs: ClassVar[tuple[str, ...]]
    """The arguments of the library's `train` that users may pass."""
    reserved_params: ClassVar[Mapping[str, str]] = {}
    """Parameter that users may not set -> the reason."""
    allowed_values: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Parameter -> the only values that users may set."""
    callback_class: ClassVar[type[TreeReportCallback]]

    def num_rounds(self, model: Any) -> int:
        raise NotImplementedError

    def list_categories(self, model: Any) -> Categories:
        """Return the categories that the model was trained with."""
        raise NotImplementedError

    def train(self, spec: BoostingSpec, tables: Mapping[str, FeatureTable], num_rounds: int, model: Any | None) -> None:
        """Train `num_rounds` rounds, continuing from `model` if given, and report each."""
        raise NotImplementedError

    def load_model(self, checkpoint: Checkpoint, spec: BoostingSpec) -> Any:
        return self.callback_class.get_model(checkpoint, self.list_callbacks(spec)[-1].plan.filename)

    def list_callbacks(self, spec: BoostingSpec) -> list[Any]:
        """Return the user's callbacks, and last the one that reports: the user's, or one that also saves the model."""
        callbacks = list(spec.train_kwargs.get("callbacks") or ())
        reporting = next((each for each in callbacks if isinstance(each, self.callback_class)), None)
        if reporting is None:
            return [*callbacks, self.callback_class(None, None, spec.checkpoint_frequency, spec.checkpoint_at_end)]
        return [*(each for each in callbacks if each is not reporting), reporting]


@dataclass(frozen=True)
class BoostingLoop:
    """The train function of each worker."""

    spec: BoostingSpec
    library: BoostingLibrary
    saves_by_itself: ClassVar[bool] = True
    """`CheckpointConfig` says when."""

    def __call__(self) -> None:
        context = worker_context.current()
        assert context is not None
        spec = self.spec
        checkpoint = get_checkpoint()
        model = self.library.load_model(checkpoint, spec) if checkpoint is not None else None
        num_done = self.library.num_rounds(model) if model is not None else 0
        num_left = spec.num_boost_round - num_done
        if num_left <= 0:
            if context.latest_checkpoint() is None:
                raise ValueError(
                    f"the model of resume_from_checkpoint already has {num_done} rounds, and num_boost_round="
                    f"{spec.num_boost_round} includes those\n\n"
                    f"hint: num_boost_round={num_done + spec.num_boost_round} trains as many more"
                )
            return  # The previous workers were lost after reporting the last round.
        tables = {}
        for name in spec.datasets:
            batches = get_dataset_shard(name).iter_batches(batch_size=None, batch_format="pyarrow")
            owner = f"rank {context.begin.rank}'s part of the dataset {name!r}"
            tables[name] = make_table(map(to_columns, batches), spec.label_column, owner)
        # Every rank calls it, with or without categories.
        found = context.gather(msgspec.json.encode([table.categories for table in tables.values()]))
        known = self.library.list_categories(model) if model is not None else {}
        categories = merge_categories(known, (each for part in found for each in msgspec.json.decode(part)))
        tables = {name: table.recode(categories) for name, table in tables.items()}
        self.library.train(spec, tables, num_left, model)


def make_boosting_spec(
    library: BoostingLibrary,
    *,
    datasets: Any,
    label_column: Any,
    params: Any,
    num_boost_round: Any,
    train_kwargs: Mapping[str, Any],
    checkpoint_config: CheckpointConfig,
) -> BoostingSpec:
    """Validate the arguments and return what to train."""
    trainer, train = f"{library.name}Trainer", f"{library.name.lower()}.train"
    if not isinstance(datasets, Mapping) or TRAIN not in datasets:
        names = ", ".join(map(repr, datasets)) if isinstance(datasets, Mapping) and datasets else "none"
        raise ValueError(f"datasets must include {TRAIN!r}; the datasets are {names}")
    if not isinstance(label_column, str) or not label_column:
        raise bad_value("label_column", "the name of a column", label_column)
    if not isinstance(params, Mapping) or not all(isinstance(name, str) for name in params):
        raise bad_value("params", f"a dict of parameters for {train}", params)
    for name, reason in library.reserved_params.items():
        if name in params:
            raise ValueError(f"params[{name!r}] cannot be set with {trainer}: {reason}")
    for name, allowed in library.allowed_values.items():
        if name in params and params[name] not in allowed:
            raise bad_value(f"params[{name!r}]", join_or(map(repr, allowed)), params[name])
    rounds = check_int("num_boost_round", _DEFAULT_ROUNDS if num_boost_round is None else num_boost_round, at_least=1)
    for name in train_kwargs:
        if name not in library.train_kwargs:
            raise TypeError(
                f"{trainer} takes no argument {name!r}; of those of {train} it takes {', '.join(library.train_kwargs)}"
            )
    check_instance("callbacks", train_kwargs.get("callbacks"), (list, tuple), "a list of callbacks", optional=True)
    ordered = (TRAIN, *(name for name in datasets if name != TRAIN))
    return BoostingSpec(label_column, dict(params), rounds, dict(train_kwargs), ordered, checkpoint_config)
