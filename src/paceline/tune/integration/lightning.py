"""Lightning in a trial: `Trainer(callbacks=[TuneReportCheckpointCallback({"loss": "val_loss"})])`."""

import importlib
from typing import TYPE_CHECKING, Any

from paceline.train.lightning.packages import home_of_classes

if TYPE_CHECKING:
    from paceline.train.lightning.of_lightning import TuneReportCallback, TuneReportCheckpointCallback

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]


def __getattr__(name: str) -> Any:
    # Not kept here: see `paceline.train.lightning`.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home_of_classes(name)), name)
