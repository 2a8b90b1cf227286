"""Runs a declared training with LightGBM in a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.train.checkpoint import Checkpoint
from paceline.train.lightgbm.callback import ReportCallback
from paceline.train.lightgbm.network import get_network_params
from paceline.train.trees.tables import FeatureTable
from paceline.train.trees.training_spec import TRAIN, BoostingRules, BoostingSpec

_ADDRESSES = "each worker finds its own port and is told those of the others; see LightGBMConfig"
_ROUNDS = "it is num_boost_round that says how many rounds there are, also after a restart"

_CHOICES = {
    "tree_learner": ("tree_learner", "tree", "tree_type", "tree_learner_type"),
    "pre_partition": ("pre_partition", "is_pre_partition"),
    "time_out": ("time_out",),
    "num_threads": ("num_threads", "num_thread", "nthread", "nthreads", "n_jobs"),
}
"""Network parameters that the user may set, with all their aliases."""
_LEARNERS = ("data", "data_parallel", "voting", "voting_parallel")
"""Tree learners for which each worker has its own rows."""

RULES = BoostingRules(
    trainer="LightGBMTrainer",
    train="lightgbm.train",
    train_kwargs=("callbacks", "feval"),
    reserved_params={
        **dict.fromkeys(("machines", "workers", "nodes"), _ADDRESSES),
        **dict.fromkeys(("machine_list_filename", "machine_list_file", "machine_list", "mlist"), _ADDRESSES),
        **dict.fromkeys(("num_machines", "num_machine", "local_listen_port", "local_port", "port"), _ADDRESSES),
        **dict.fromkeys(("num_iterations", "num_iteration", "n_iter", "num_tree", "num_trees"), _ROUNDS),
        **dict.fromkeys(("num_round", "num_rounds", "nrounds", "num_boost_round", "n_estimators"), _ROUNDS),
        "max_iter": _ROUNDS,
    },
    only={**dict.fromkeys(_CHOICES["tree_learner"], _LEARNERS), **dict.fromkeys(_CHOICES["pre_partition"], (True,))},
)


@dataclass(frozen=True)
class LightGBMLibrary:
    """Implements `paceline.train.trees.training_spec.BoostingLibrary`."""

    def load_model(self, checkpoint: Checkpoint, declared: BoostingSpec) -> Any:
        return ReportCallback.get_model(checkpoint, _report_callback(declared).plan.filename)

    def num_rounds(self, model: Any) -> int:
        return int(model.current_iteration())

    def train(
        self, declared: BoostingSpec, tables: Mapping[str, FeatureTable], num_rounds: int, model: Any | None
    ) -> None:
        import lightgbm

        network = get_network_params()
        for name, spellings in _CHOICES.items():
            if any(spelling in declared.params for spelling in spellings):
                network.pop(name, None)
        sets: dict[str, Any] = {}
        for name, table in tables.items():
            sets[name] = lightgbm.Dataset(
                table.features, label=table.labels, feature_name=list(table.names), reference=sets.get(TRAIN)
            )
        reporting = _report_callback(declared)
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


def _report_callback(declared: BoostingSpec) -> ReportCallback:
    """Return the user's report callback, or one that also saves the model during training."""
    given = declared.train_kwargs.get("callbacks") or ()
    mine = (callback for callback in given if isinstance(callback, ReportCallback))
    return next(mine, None) or ReportCallback(frequency=declared.checkpoint_frequency)
