"""LightGBMPredictor: apply a trained booster to the batches of a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.train.checkpoint import Checkpoint
from paceline.train.lightgbm.callback import ReportCallback
from paceline.train.trees.predictor import TreePredictor


class LightGBMPredictor(TreePredictor):
    __doc__ = TreePredictor.__doc__

    def _read(self, checkpoint: Checkpoint, filename: str | None) -> Any:
        return ReportCallback.get_model(checkpoint, filename or ReportCallback.CHECKPOINT_NAME)

    def _feature_names(self) -> list[str] | None:
        return list(self.model.feature_name())

    def _predict_matrix(self, matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        # One thread, as there is a process per core; callers can override it.
        predicted: np.ndarray[Any, Any] = self.model.predict(matrix, **{"num_threads": 1, **self._predict_kwargs})
        return predicted
