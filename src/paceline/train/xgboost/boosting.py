"""Runs a declared training with XGBoost in a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from paceline._worker import context as worker_context
from paceline.train.trees.tables import FeatureTable
from paceline.train.trees.training_spec import TRAIN, BoostingLibrary, BoostingSpec
from paceline.train.xgboost.model import ReportCallback


class XGBoostLibrary(BoostingLibrary):
    name = "XGBoost"
    train_kwargs = ("callbacks", "custom_metric", "early_stopping_rounds", "maximize", "obj", "verbose_eval")
    reserved_params: ClassVar[Mapping[str, str]] = {
        "num_boost_round": "it is an argument of its own, which also holds after a restart"
    }
    callback_class = ReportCallback

    def num_rounds(self, model: Any) -> int:
        return int(model.num_boosted_rounds())

    def train(self, spec: BoostingSpec, tables: Mapping[str, FeatureTable], num_rounds: int, model: Any | None) -> None:
        import xgboost

        context = worker_context.current()
        assert context is not None
        num_threads = context.begin.num_threads
        matrices = {
            name: xgboost.DMatrix(
                table.features, label=table.labels, feature_names=list(table.names), nthread=num_threads
            )
            for name, table in tables.items()
        }
        xgboost.train(
            make_params(spec.params, num_threads, context.begin.devices),
            matrices[TRAIN],
            num_boost_round=num_rounds,
            evals=[(matrix, name) for name, matrix in matrices.items()],
            xgb_model=model,
            **{**spec.train_kwargs, "callbacks": self.list_callbacks(spec)},
        )


def make_params(params: Mapping[str, Any], num_threads: int, devices: tuple[int, ...]) -> dict[str, Any]:
    """Add the threads and GPU of this worker to the user's parameters, unless the user has set them."""
    params = dict(params)
    if "nthread" not in params and "n_jobs" not in params:
        params["nthread"] = num_threads
    if devices and params.get("device", "cuda") == "cuda":
        params["device"] = f"cuda:{devices[0]}"
    return params
