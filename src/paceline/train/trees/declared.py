"""Boosting that is declared: datasets, a label, parameters and a number of rounds, and no train function.

`declared` checks what was asked for before any process starts. `Boosting` is the function that workers then run: it
reads the worker's rows, goes on from the newest checkpoint, and trains the rounds that are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from paceline._worker import context as worker_context
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import get_checkpoint, get_dataset_shard
from paceline.train.trees.tables import Table, table_of

TRAIN = "train"
_DEFAULT_ROUNDS = 10
_NUM_KEPT = 10
"""How many times the model is kept on the way, where the caller does not say how often."""


@dataclass(frozen=True)
class Declared:
    """What to train."""

    label_column: str
    params: Mapping[str, Any]
    num_boost_round: int
    train_kwargs: Mapping[str, Any]
    """More arguments for the library's own `train`."""
    datasets: tuple[str, ...]
    """The names of all datasets, the one to train on first."""

    @property
    def frequency(self) -> int:
        """After how many rounds the model is kept, by default: a run that dies loses a tenth of its work at most."""
        return max(1, self.num_boost_round // _NUM_KEPT)


@dataclass(frozen=True)
class Rules:
    """What a library lets a caller declare."""

    trainer: str
    train: str
    """Its function that trains, for messages."""
    train_kwargs: tuple[str, ...]
    ours: Mapping[str, str]
    """Parameters that a caller may not set, each with the reason."""


class Library(Protocol):
    """What differs between the libraries, in a worker."""

    def model_in(self, checkpoint: Checkpoint, declared: Declared) -> Any: ...

    def num_rounds(self, model: Any) -> int: ...

    def train(self, declared: Declared, tables: Mapping[str, Table], num_rounds: int, model: Any | None) -> None:
        """Train so many rounds, on from a model where there is one, and report each."""


@dataclass(frozen=True)
class Boosting:
    """The function of each worker."""

    declared: Declared
    library: Library

    def __call__(self) -> None:
        context = worker_context.current()
        assert context is not None
        declared = self.declared
        checkpoint = get_checkpoint()
        model = self.library.model_in(checkpoint, declared) if checkpoint is not None else None
        num_done = self.library.num_rounds(model) if model is not None else 0
        num_left = declared.num_boost_round - num_done
        if num_left <= 0:
            if context.latest_checkpoint() is None:
                raise ValueError(
                    f"the model of resume_from_checkpoint has {num_done} rounds already, and num_boost_round="
                    f"{declared.num_boost_round} counts those too\n\n"
                    f"hint: num_boost_round={num_done + declared.num_boost_round} trains as many more"
                )
            return  # The last round had been reported when the workers before these were lost.
        tables = {name: _table(name, declared.label_column, context.begin.rank) for name in declared.datasets}
        self.library.train(declared, tables, num_left, model)


def _table(name: str, label_column: str, rank: int) -> Table:
    batches = get_dataset_shard(name).iter_batches(batch_size=None, batch_format="numpy")
    return table_of(batches, label_column, f"rank {rank}'s part of the dataset {name!r}")


def declared(
    rules: Rules,
    *,
    datasets: Any,
    label_column: Any,
    params: Any,
    num_boost_round: Any,
    train_kwargs: Mapping[str, Any],
) -> Declared:
    """What to train, checked."""
    if not isinstance(datasets, Mapping) or TRAIN not in datasets:
        there = ", ".join(map(repr, datasets)) if isinstance(datasets, Mapping) and datasets else "none"
        raise ValueError(f"datasets= has no {TRAIN!r} to train on; there are: {there}")
    if not isinstance(label_column, str) or not label_column:
        raise ValueError(f"label_column={label_column!r} is not the name of a column")
    if not isinstance(params, Mapping) or not all(isinstance(name, str) for name in params):
        raise ValueError(f"params={params!r} is not a dict of parameters for {rules.train}")
    for name, reason in rules.ours.items():
        if name in params:
            raise ValueError(f"params[{name!r}] cannot be set with {rules.trainer}: {reason}")
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
    return Declared(label_column, dict(params), rounds, dict(train_kwargs), names)
