"""The familiar path to `TuneReportCallback`."""

from paceline.tune.integration.train import CHECKPOINT_PATH_KEY, TuneReportCallback

__all__ = ["CHECKPOINT_PATH_KEY", "TuneReportCallback"]
