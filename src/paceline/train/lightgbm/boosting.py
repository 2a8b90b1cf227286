"""Runs a declared training with LightGBM in a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from paceline.train.lightgbm.config import get_network_params
from paceline.train.lightgbm.model import ReportCallback
from paceline.train.trees.tables import FeatureTable
from paceline.train.trees.training_spec import TRAIN, BoostingLibrary, BoostingSpec

_ADDRESSES = "workers choose their ports and exchange them; see LightGBMConfig"
_ROUNDS = "num_boost_round sets the number of rounds, also after a restart"

_CHOICES = {
    "tree_learner": ("tree_learner", "tree", "tree_type", "tree_learner_type"),
    "pre_partition": ("pre_partition", "is_pre_partition"),
    "time_out": ("time_out",),
    "num_threads": ("num_threads", "num_thread", "nthread", "nthreads", "n_jobs"),
}
"""Network parameters that the user may set, with all their aliases."""
_LEARNERS = ("data", "data_parallel", "voting", "voting_parallel")
"""Tree learners for which each worker has its own rows."""


class LightGBMLibrary(BoostingLibrary):
    name = "LightGBM"
    train_kwargs = ("callbacks", "feval")
    reserved_params: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("machines", "workers", "nodes"), _ADDRESSES),
        **dict.fromkeys(("machine_list_filename", "machine_list_file", "machine_list", "mlist"), _ADDRESSES),
        **dict.fromkeys(("num_machines", "num_machine", "local_listen_port", "local_port", "port"), _ADDRESSES),
        **dict.fromkeys(("num_iterations", "num_iteration", "n_iter", "num_tree", "num_trees"), _ROUNDS),
        **dict.fromkeys(("num_round", "num_rounds", "nrounds", "num_boost_round", "n_estimators"), _ROUNDS),
        "max_iter": _ROUNDS,
    }
    allowed_values: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **dict.fromkeys(_CHOICES["tree_learner"], _LEARNERS),
        **dict.fromkeys(_CHOICES["pre_partition"], (True,)),
    }
    callback_class = ReportCallback

    def num_rounds(self, model: Any) -> int:
        return int(model.current_iteration())

    def train(self, spec: BoostingSpec, tables: Mapping[str, FeatureTable], num_rounds: int, model: Any | None) -> None:
        import lightgbm

        network = get_network_params()
        for name, spellings in _CHOICES.items():
            if any(spelling in spec.params for spelling in spellings):
                network.pop(name, None)
        sets: dict[str, Any] = {}
        for name, table in tables.items():
            sets[name] = lightgbm.Dataset(
                table.features, label=table.labels, feature_name=list(table.names), reference=sets.get(TRAIN)
            )
        callbacks = self.list_callbacks(spec)
        booster = lightgbm.train(
            {**spec.params, **network},
            sets[TRAIN],
            num_boost_round=num_rounds,
            valid_sets=list(sets.values()),
            valid_names=list(sets),
            init_model=model,
            callbacks=callbacks,
            feval=spec.train_kwargs.get("feval"),
        )
        callbacks[-1].training_ended(booster)
