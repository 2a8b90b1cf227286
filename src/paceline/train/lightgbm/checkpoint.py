"""LightGBMCheckpoint: a booster in LightGBM's text format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.train.trees.checkpoint import ModelCheckpoint

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
