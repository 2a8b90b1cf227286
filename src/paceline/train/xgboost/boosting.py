"""Runs a declared training with XGBoost in a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline._worker import context as worker_context
from paceline.train.checkpoint import Checkpoint
from paceline.train.trees.tables import FeatureTable
from paceline.train.trees.training_spec import TRAIN, BoostingRules, BoostingSpec
from paceline.train.xgboost.callback import ReportCallback

RULES = BoostingRules(
    trainer="XGBoostTrainer",
    train="xgboost.train",
    train_kwargs=("callbacks", "custom_metric", "early_stopping_rounds", "maximize", "obj", "verbose_eval"),
    reserved_params={
        "num_boost_round": "it is an argument of its own, and says how many rounds there are after a restart too"
    },
)


@dataclass(frozen=True)
class XGBoostLibrary:
    """Implements `paceline.train.trees.training_spec.BoostingLibrary`."""

    def load_model(self, checkpoint: Checkpoint, declared: BoostingSpec) -> Any:
        return ReportCallback.get_model(checkpoint, _report_callback(declared).plan.filename)

    def num_rounds(self, model: Any) -> int:
        return int(model.num_boosted_rounds())

    def train(
        self, declared: BoostingSpec, tables: Mapping[str, FeatureTable], num_rounds: int, model: Any | None
    ) -> None:
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
        reporting = _report_callback(declared)
        given = dict(declared.train_kwargs)
        others = [callback for callback in given.pop("callbacks", None) or () if callback is not reporting]
        num_patient = given.pop("early_stopping_rounds", None)
        if num_patient:
            # XGBoost would run it last, after the model is saved, so the saved model would lack its best iteration.
            others.append(xgboost.callback.EarlyStopping(num_patient, maximize=given.pop("maximize", None)))
        xgboost.train(
            make_params(declared.params, num_threads, context.begin.devices),
            matrices[TRAIN],
            num_boost_round=num_rounds,
            evals=[(matrix, name) for name, matrix in matrices.items()],
            xgb_model=model,
            callbacks=[*others, reporting],
            **given,
        )


def make_params(params: Mapping[str, Any], num_threads: int, devices: tuple[int, ...]) -> dict[str, Any]:
    """Add the threads and GPU of this worker to the user's parameters, unless the user has set them."""
    made = dict(params)
    if "nthread" not in made and "n_jobs" not in made:
        made["nthread"] = num_threads
    if devices and made.get("device", "cuda") == "cuda":
        made["device"] = f"cuda:{devices[0]}"
    return made


def _report_callback(declared: BoostingSpec) -> ReportCallback:
    """Return the user's report callback, or one that also saves the model during training."""
    given = declared.train_kwargs.get("callbacks") or ()
    mine = (callback for callback in given if isinstance(callback, ReportCallback))
    return next(mine, None) or ReportCallback(frequency=declared.checkpoint_frequency)
