"""LightGBM's model: its checkpoint, the callback that reports it during training, and its predictor."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from paceline.train.checkpoint import Checkpoint
from paceline.train.trees.predictor import TreePredictor
from paceline.train.trees.reports import ModelCheckpoint, TreeReportCallback

if TYPE_CHECKING:
    import lightgbm


class LightGBMCheckpoint(ModelCheckpoint):
    """A checkpoint with one file, `model.txt`, for `lightgbm.Booster(model_file=...)`.

    train.report(metrics, checkpoint=LightGBMCheckpoint.from_model(booster))
    booster = LightGBMCheckpoint(result.checkpoint.path).get_model()
    """

    MODEL_FILENAME: ClassVar[str] = "model.txt"

    def get_model(self) -> lightgbm.Booster:
        """Load the booster."""
        return super().get_model()

    @staticmethod
    def _write(booster: Any, file: Path) -> None:
        # All rounds during training; after early stopping, those up to the best.
        booster.save_model(str(file))

    @staticmethod
    def _read(file: Path) -> lightgbm.Booster:
        import lightgbm

        return lightgbm.Booster(model_file=str(file))


class ReportCallback(TreeReportCallback):
    """A callback for `lightgbm.train`. Use it on every rank.

        lightgbm.train(params, dataset, valid_sets=[...], callbacks=[ReportCallback(frequency=10)])

    `metrics`: a name such as `"valid-auc"`, a list of names, or a dict from reported name to LightGBM's name; None
    reports all. Every `frequency` rounds, and at the end with `checkpoint_at_end`, the report includes the model as the
    file `filename`. `results_postprocessing_fn` takes the metrics and returns those to report.

    LightGBM calls its callbacks after the last round, but not if another callback stops training early; see
    `training_ended`.
    """

    checkpoint_class = LightGBMCheckpoint
    CHECKPOINT_NAME = LightGBMCheckpoint.MODEL_FILENAME

    # After the callbacks that record and print, before early stopping, which ends the round.
    order = 25
    before_iteration = False

    def __call__(self, env: Any) -> None:
        """Called by LightGBM after each round."""
        num_rounds = env.iteration + 1
        metrics = collect_metrics(env.evaluation_result_list or ())
        self._reporter.on_round_end(env.model, num_rounds, metrics, last=num_rounds == env.end_iteration)

    def training_ended(self, model: lightgbm.Booster) -> None:
        """Report the returned model, up to its best round, if training stopped early; otherwise do nothing.

        For code that uses early stopping; all ranks must call it.
        """
        self._reporter.on_training_end(model, model.current_iteration())


RayTrainReportCallback = ReportCallback


def collect_metrics(results: Iterable[Any]) -> dict[str, float]:
    """Return the metrics of a round, named `set-metric`; for cross-validation, their mean and standard deviation."""
    metrics: dict[str, float] = {}
    for name, metric, value, _, *deviation in results:
        if deviation and deviation[0] is not None:
            metrics[f"{name}-{metric}-mean"] = float(value)
            metrics[f"{name}-{metric}-stdv"] = float(deviation[0])
        else:
            metrics[f"{name}-{metric}"] = float(value)
    return metrics


class LightGBMPredictor(TreePredictor):
    __doc__ = TreePredictor.__doc__

    def _read(self, checkpoint: Checkpoint, filename: str | None) -> Any:
        return ReportCallback.get_model(checkpoint, filename)

    def _feature_names(self) -> list[str] | None:
        return list(self.model.feature_name())

    def _predict_matrix(self, matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        # One thread, as there is a process per core; callers can override it.
        predicted: np.ndarray[Any, Any] = self.model.predict(matrix, **{"num_threads": 1, **self._predict_kwargs})
        return predicted
