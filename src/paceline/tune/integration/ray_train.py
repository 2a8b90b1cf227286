"""`TuneReportCallback` under its Ray Tune import path."""

from paceline.tune.integration.train import CHECKPOINT_PATH_KEY, TuneReportCallback

__all__ = ["CHECKPOINT_PATH_KEY", "TuneReportCallback"]
