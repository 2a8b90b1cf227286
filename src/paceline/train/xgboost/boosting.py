"""Runs a declared training with XGBoost in a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline._worker import context as worker_context
from paceline.train.trees.tables import FeatureTable
from paceline.train.trees.training_spec import TRAIN, BoostingLibrary, BoostingRules, BoostingSpec
from paceline.train.xgboost.model import ReportCallback

RULES = BoostingRules(
    trainer="XGBoostTrainer",
    train="xgboost.train",
    train_kwargs=("callbacks", "custom_metric", "early_stopping_rounds", "maximize", "obj", "verbose_eval"),
    reserved_params={"num_boost_round": "it is an argument of its own, which also holds after a restart"},
)


class XGBoostLibrary(BoostingLibrary):
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
        callbacks = self.list_callbacks(spec)
        train_kwargs = {name: value for name, value in spec.train_kwargs.items() if name != "callbacks"}
        num_patient = train_kwargs.pop("early_stopping_rounds", None)
        if num_patient:
            # XGBoost would run it last, after the model is saved, so the saved model would lack its best iteration.
            stopping = xgboost.callback.EarlyStopping(rounds=num_patient, maximize=train_kwargs.pop("maximize", None))
            callbacks.insert(-1, stopping)
        xgboost.train(
            make_params(spec.params, num_threads, context.begin.devices),
            matrices[TRAIN],
            num_boost_round=num_rounds,
            evals=[(matrix, name) for name, matrix in matrices.items()],
            xgb_model=model,
            callbacks=callbacks,
            **train_kwargs,
        )


def make_params(params: Mapping[str, Any], num_threads: int, devices: tuple[int, ...]) -> dict[str, Any]:
    """Add the threads and GPU of this worker to the user's parameters, unless the user has set them."""
    params = dict(params)
    if "nthread" not in params and "n_jobs" not in params:
        params["nthread"] = num_threads
    if devices and params.get("device", "cuda") == "cuda":
        params["device"] = f"cuda:{devices[0]}"
    return params
