"""XGBoostCheckpoint: a booster in XGBoost's binary JSON format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.train.trees.checkpoint import ModelCheckpoint

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
