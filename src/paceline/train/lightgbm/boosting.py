"""What LightGBM does for a declared training, in a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.train.checkpoint import Checkpoint
from paceline.train.lightgbm.callback import ReportCallback
from paceline.train.lightgbm.network import get_network_params
from paceline.train.trees.declared import TRAIN, Declared, Rules
from paceline.train.trees.tables import Table

_ADDRESSES = "each worker finds its own port and is told those of the others; see LightGBMConfig"
_ROUNDS = "it is num_boost_round that says how many rounds there are, also after a restart"
_LEARNER = "it is LightGBMConfig(tree_learner=...) that says how workers share the work"

RULES = Rules(
    trainer="LightGBMTrainer",
    train="lightgbm.train",
    train_kwargs=("callbacks", "feval"),
    ours={
        **dict.fromkeys(("machines", "workers", "nodes"), _ADDRESSES),
        **dict.fromkeys(("machine_list_filename", "machine_list_file", "machine_list", "mlist"), _ADDRESSES),
        **dict.fromkeys(("num_machines", "num_machine", "local_listen_port", "local_port", "port"), _ADDRESSES),
        **dict.fromkeys(("time_out", "pre_partition", "is_pre_partition"), _ADDRESSES),
        **dict.fromkeys(("tree_learner", "tree", "tree_type", "tree_learner_type"), _LEARNER),
        **dict.fromkeys(("num_iterations", "num_iteration", "n_iter", "num_tree", "num_trees"), _ROUNDS),
        **dict.fromkeys(("num_round", "num_rounds", "nrounds", "num_boost_round", "n_estimators"), _ROUNDS),
        "max_iter": _ROUNDS,
    },
)

_THREADS = ("num_threads", "num_thread", "nthread", "nthreads", "n_jobs")


@dataclass(frozen=True)
class LightGBM:
    """See `paceline.train.trees.declared.Library`."""

    def model_in(self, checkpoint: Checkpoint, declared: Declared) -> Any:
        return ReportCallback.get_model(checkpoint, _reporting(declared).plan.filename)

    def num_rounds(self, model: Any) -> int:
        return int(model.current_iteration())

    def train(self, declared: Declared, tables: Mapping[str, Table], num_rounds: int, model: Any | None) -> None:
        import lightgbm

        network = get_network_params()
        if any(name in declared.params for name in _THREADS):
            del network["num_threads"]
        sets: dict[str, Any] = {}
        for name, table in tables.items():
            sets[name] = lightgbm.Dataset(
                table.features, label=table.labels, feature_name=list(table.names), reference=sets.get(TRAIN)
            )
        reporting = _reporting(declared)
        others = [callback for callback in declared.train_kwargs.get("callbacks") or () if callback is not reporting]
        booster = lightgbm.train(
            {**declared.params, **network},
            sets[TRAIN],
            num_boost_round=num_rounds,
            valid_sets=list(sets.values()),
            valid_names=list(sets),
            init_model=model,
            callbacks=[*others, reporting],
            feval=declared.train_kwargs.get("feval"),
        )
        reporting.training_ended(booster)


def _reporting(declared: Declared) -> ReportCallback:
    """The callback that reports: the caller's own, or one that keeps the model on the way."""
    given = declared.train_kwargs.get("callbacks") or ()
    mine = (callback for callback in given if isinstance(callback, ReportCallback))
    return next(mine, None) or ReportCallback(frequency=declared.frequency)
