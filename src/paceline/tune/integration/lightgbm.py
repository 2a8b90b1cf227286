"""LightGBM in a trial: `lightgbm.train(..., callbacks=[TuneReportCheckpointCallback(...)])`."""

from paceline.train.lightgbm.model import ReportCallback

TuneReportCheckpointCallback = ReportCallback
TuneReportCallback = ReportCallback
