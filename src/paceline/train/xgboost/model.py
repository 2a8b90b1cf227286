"""XGBoost's model: its checkpoint, the callback that reports it during training, and its predictor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from paceline.train.checkpoint import Checkpoint
from paceline.train.trees.predictor import TreePredictor
from paceline.train.trees.reports import ModelCheckpoint, TreeReportCallback

if TYPE_CHECKING:
    import xgboost


class XGBoostCheckpoint(ModelCheckpoint):
    """A checkpoint with one file, `model.ubj`, for `xgboost.Booster(model_file=...)`.

    train.report(metrics, checkpoint=XGBoostCheckpoint.from_model(booster))
    booster = XGBoostCheckpoint(result.checkpoint.path).get_model()
    """

    MODEL_FILENAME: ClassVar[str] = "model.ubj"

    def get_model(self) -> xgboost.Booster:
        """Load the booster."""
        return super().get_model()

    @staticmethod
    def _write(booster: Any, file: Path) -> None:
        # The suffix selects the format.
        booster.save_model(str(file))

    @staticmethod
    def _read(file: Path) -> xgboost.Booster:
        import xgboost

        booster = xgboost.Booster()
        booster.load_model(str(file))
        return booster


try:
    from xgboost.callback import TrainingCallback
except ImportError:
    # The class exists without XGBoost, like all our names; creating an instance raises with a hint.
    TrainingCallback = object


class ReportCallback(TreeReportCallback, TrainingCallback):  # type: ignore[misc]
    """A callback for `xgboost.train`. Use it on every rank.

        xgboost.train(params, matrix, evals=[...], callbacks=[ReportCallback(frequency=10)])

    `metrics`: a name such as `"valid-auc"`, a list of names, or a dict from reported name to XGBoost's name; None
    reports all. Every `frequency` rounds, and at the end with `checkpoint_at_end`, the report includes the model as the
    file `filename`, whose suffix `.ubj` or `.json` selects the format. `results_postprocessing_fn` takes the metrics
    and returns those to report.

    XGBoost does not tell its callbacks which round is the last. If the last round saved no model, its metrics are
    therefore reported again at the end, with the model. The same happens with `early_stopping_rounds` if the last round
    was the best, because XGBoost records that after this callback. To avoid it, put your own `EarlyStopping` before
    this callback.
    """

    requires = ("xgboost",)
    checkpoint_class = XGBoostCheckpoint
    CHECKPOINT_NAME = XGBoostCheckpoint.MODEL_FILENAME

    _best: str | None = None
    """The model's best round so far, as of the previous round."""

    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Mapping[str, Any]]) -> bool:
        """Called by XGBoost after each round. Returning False continues training."""
        # Not `epoch`, which restarts at 0 when training continues from a model.
        self._reporter.on_round_end(model, model.num_boosted_rounds(), collect_metrics(evals_log))
        self._best = model.attr("best_iteration")
        return False

    def after_training(self, model: Any) -> Any:
        """Called by XGBoost at the end, also after early stopping."""
        changed = model.attr("best_iteration") != self._best
        self._reporter.on_training_end(model, model.num_boosted_rounds(), changed=changed)
        return model


RayTrainReportCallback = ReportCallback


def collect_metrics(evals_log: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the metrics of the last round, named `set-metric`; for cross-validation, their mean and standard
    deviation."""
    metrics: dict[str, float] = {}
    for name, histories in evals_log.items():
        for metric, history in histories.items():
            newest = history[-1]
            if isinstance(newest, tuple):
                metrics[f"{name}-{metric}-mean"], metrics[f"{name}-{metric}-std"] = map(float, newest)
            else:
                metrics[f"{name}-{metric}"] = float(newest)
    return metrics


class XGBoostPredictor(TreePredictor):
    __doc__ = TreePredictor.__doc__

    def _read(self, checkpoint: Checkpoint, filename: str | None) -> Any:
        model = ReportCallback.get_model(checkpoint, filename)
        # One thread, as there is a process per core.
        model.set_param({"nthread": 1})
        return model

    def _feature_names(self) -> list[str] | None:
        names = self.model.feature_names
        return list(names) if names else None

    def _predict_matrix(self, matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        import xgboost

        names = self._feature_names()
        rows = xgboost.DMatrix(matrix, feature_names=names, nthread=1)
        predicted: np.ndarray[Any, Any] = self.model.predict(rows, **self._predict_kwargs)
        return predicted
