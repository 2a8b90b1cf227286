"""LightGBMCheckpoint: a booster in LightGBM's own text format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.train.trees.model_file import ModelCheckpoint

if TYPE_CHECKING:
    import lightgbm


class LightGBMCheckpoint(ModelCheckpoint):
    """A checkpoint with one file, `model.txt`, that `lightgbm.Booster(model_file=...)` reads.

    train.report(metrics, checkpoint=LightGBMCheckpoint.from_model(booster))
    booster = LightGBMCheckpoint(result.checkpoint.path).get_model()
    """

    MODEL_FILENAME: ClassVar[str] = "model.txt"

    def get_model(self) -> lightgbm.Booster:
        """The booster in it."""
        return super().get_model()

    @staticmethod
    def _write(booster: Any, file: Path) -> None:
        # All rounds of one in training; of one that has stopped early, those up to its best.
        booster.save_model(str(file))

    @staticmethod
    def _read(file: Path) -> lightgbm.Booster:
        import lightgbm

        return lightgbm.Booster(model_file=str(file))
