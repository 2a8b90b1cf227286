"""LightGBM in a trial: `lightgbm.train(..., callbacks=[TuneReportCheckpointCallback(...)])`."""

from paceline.train.lightgbm.callback import ReportCallback

TuneReportCheckpointCallback = ReportCallback
TuneReportCallback = ReportCallback
