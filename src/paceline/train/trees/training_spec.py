"""Declared boosting: datasets, a label, parameters and a number of rounds, without a train function.

`make_boosting_spec` validates the arguments before any process starts. `BoostingLoop` is the function that workers run:
it reads the worker's rows, resumes from the newest checkpoint, and trains the remaining rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline._worker import context as worker_context
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import get_checkpoint, get_dataset_shard
from paceline.train.trees.tables import FeatureTable, make_table

TRAIN = "train"
_DEFAULT_ROUNDS = 10
_NUM_KEPT = 10
"""How often the model is saved during training by default."""


@dataclass(frozen=True)
class BoostingSpec:
    label_column: str
    params: Mapping[str, Any]
    num_boost_round: int
    train_kwargs: Mapping[str, Any]
    """Further arguments for the library's `train`."""
    datasets: tuple[str, ...]
    """The names of all datasets, with the training set first."""

    @property
    def checkpoint_frequency(self) -> int:
        """Default number of rounds between checkpoints: a crash loses at most a tenth of the work."""
        return max(1, self.num_boost_round // _NUM_KEPT)


@dataclass(frozen=True)
class BoostingRules:
    """What a library allows users to declare."""

    trainer: str
    train: str
    """The library's train function, for messages."""
    train_kwargs: tuple[str, ...]
    reserved_params: Mapping[str, str]
    """Parameter that users may not set -> the reason."""
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Parameter -> the only values that users may set."""


class BoostingLibrary(Protocol):
    """What differs between the libraries, in a worker."""

    def load_model(self, checkpoint: Checkpoint, declared: BoostingSpec) -> Any: ...

    def num_rounds(self, model: Any) -> int: ...

    def train(
        self, declared: BoostingSpec, tables: Mapping[str, FeatureTable], num_rounds: int, model: Any | None
    ) -> None:
        """Train `num_rounds` rounds, continuing from `model` if given, and report each."""


@dataclass(frozen=True)
class BoostingLoop:
    """The train function of each worker."""

    spec: BoostingSpec
    library: BoostingLibrary

    def __call__(self) -> None:
        context = worker_context.current()
        assert context is not None
        declared = self.spec
        checkpoint = get_checkpoint()
        model = self.library.load_model(checkpoint, declared) if checkpoint is not None else None
        num_done = self.library.num_rounds(model) if model is not None else 0
        num_left = declared.num_boost_round - num_done
        if num_left <= 0:
            if context.latest_checkpoint() is None:
                raise ValueError(
                    f"the model of resume_from_checkpoint has {num_done} rounds already, and num_boost_round="
                    f"{declared.num_boost_round} counts those too\n\n"
                    f"hint: num_boost_round={num_done + declared.num_boost_round} trains as many more"
                )
            return  # The previous workers were lost after reporting the last round.
        tables = {name: _load_table(name, declared.label_column, context.begin.rank) for name in declared.datasets}
        self.library.train(declared, tables, num_left, model)


def _load_table(name: str, label_column: str, rank: int) -> FeatureTable:
    batches = get_dataset_shard(name).iter_batches(batch_size=None, batch_format="numpy")
    return make_table(batches, label_column, f"rank {rank}'s part of the dataset {name!r}")


def make_boosting_spec(
    rules: BoostingRules,
    *,
    datasets: Any,
    label_column: Any,
    params: Any,
    num_boost_round: Any,
    train_kwargs: Mapping[str, Any],
) -> BoostingSpec:
    """Validate the arguments and return what to train."""
    if not isinstance(datasets, Mapping) or TRAIN not in datasets:
        there = ", ".join(map(repr, datasets)) if isinstance(datasets, Mapping) and datasets else "none"
        raise ValueError(f"datasets= has no {TRAIN!r} to train on; there are: {there}")
    if not isinstance(label_column, str) or not label_column:
        raise ValueError(f"label_column={label_column!r} is not the name of a column")
    if not isinstance(params, Mapping) or not all(isinstance(name, str) for name in params):
        raise ValueError(f"params={params!r} is not a dict of parameters for {rules.train}")
    for name, reason in rules.reserved_params.items():
        if name in params:
            raise ValueError(f"params[{name!r}] cannot be set with {rules.trainer}: {reason}")
    for name, allowed in rules.only.items():
        if name in params and params[name] not in allowed:
            raise ValueError(f"params[{name!r}]={params[name]!r} is none of {', '.join(map(repr, allowed))}")
    rounds = _DEFAULT_ROUNDS if num_boost_round is None else num_boost_round
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"num_boost_round={num_boost_round!r} is not a whole number of at least 1")
    for name in train_kwargs:
        if name not in rules.train_kwargs:
            raise TypeError(
                f"{rules.trainer} takes no argument {name!r}; of those of {rules.train} it takes: "
                f"{', '.join(rules.train_kwargs)}"
            )
    callbacks = train_kwargs.get("callbacks")
    if not isinstance(callbacks, list | tuple | None):
        raise ValueError(f"callbacks={callbacks!r} is not a list of callbacks")
    names = (TRAIN, *(name for name in datasets if name != TRAIN))
    return BoostingSpec(label_column, dict(params), rounds, dict(train_kwargs), names)
