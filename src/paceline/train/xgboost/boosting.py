"""What XGBoost does for a declared training, in a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline._worker import context as worker_context
from paceline.train.checkpoint import Checkpoint
from paceline.train.trees.declared import TRAIN, Declared, Rules
from paceline.train.trees.tables import Table
from paceline.train.xgboost.callback import ReportCallback

RULES = Rules(
    trainer="XGBoostTrainer",
    train="xgboost.train",
    train_kwargs=("callbacks", "custom_metric", "early_stopping_rounds", "maximize", "obj", "verbose_eval"),
    ours={"num_boost_round": "it is an argument of its own, and says how many rounds there are after a restart too"},
)


@dataclass(frozen=True)
class XGBoost:
    """See `paceline.train.trees.declared.Library`."""

    def model_in(self, checkpoint: Checkpoint, declared: Declared) -> Any:
        return ReportCallback.get_model(checkpoint, _reporting(declared).plan.filename)

    def num_rounds(self, model: Any) -> int:
        return int(model.num_boosted_rounds())

    def train(self, declared: Declared, tables: Mapping[str, Table], num_rounds: int, model: Any | None) -> None:
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
        reporting = _reporting(declared)
        given = dict(declared.train_kwargs)
        others = [callback for callback in given.pop("callbacks", None) or () if callback is not reporting]
        num_patient = given.pop("early_stopping_rounds", None)
        if num_patient:
            # XGBoost would put it last: the model that is kept would not know yet that it is the best so far.
            others.append(xgboost.callback.EarlyStopping(num_patient, maximize=given.pop("maximize", None)))
        xgboost.train(
            parameters(declared.params, num_threads, context.begin.devices),
            matrices[TRAIN],
            num_boost_round=num_rounds,
            evals=[(matrix, name) for name, matrix in matrices.items()],
            xgb_model=model,
            callbacks=[*others, reporting],
            **given,
        )


def parameters(params: Mapping[str, Any], num_threads: int, devices: tuple[int, ...]) -> dict[str, Any]:
    """The caller's parameters with the threads and the GPU of one worker, where the caller has not chosen."""
    made = dict(params)
    if "nthread" not in made and "n_jobs" not in made:
        made["nthread"] = num_threads
    if devices and made.get("device", "cuda") == "cuda":
        made["device"] = f"cuda:{devices[0]}"
    return made


def _reporting(declared: Declared) -> ReportCallback:
    """The callback that reports: the caller's own, or one that keeps the model on the way."""
    given = declared.train_kwargs.get("callbacks") or ()
    mine = (callback for callback in given if isinstance(callback, ReportCallback))
    return next(mine, None) or ReportCallback(frequency=declared.frequency)
