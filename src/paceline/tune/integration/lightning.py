"""Lightning in a trial: `Trainer(callbacks=[TuneReportCheckpointCallback({"loss": "val_loss"})])`."""

from typing import TYPE_CHECKING, Any

from paceline._core.lazy_imports import raise_missing
from paceline.train.lightning import find_class

if TYPE_CHECKING:
    from paceline.train.lightning.lightning_classes import (
        TuneCallback,
        TuneReportCallback,
        TuneReportCheckpointCallback,
    )

__all__ = ["TuneCallback", "TuneReportCallback", "TuneReportCheckpointCallback"]


def __getattr__(name: str) -> Any:
    # Not cached here: see `paceline.train.lightning`.
    if name not in __all__:
        raise_missing(__name__, name, __all__)
    return find_class(name)
