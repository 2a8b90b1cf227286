"""XGBoostPredictor: apply a trained booster to the batches of a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.train.checkpoint import Checkpoint
from paceline.train.trees.predictor import TreePredictor
from paceline.train.xgboost.callback import ReportCallback


class XGBoostPredictor(TreePredictor):
    __doc__ = TreePredictor.__doc__

    def _read(self, checkpoint: Checkpoint, filename: str | None) -> Any:
        model = ReportCallback.get_model(checkpoint, filename or ReportCallback.CHECKPOINT_NAME)
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
