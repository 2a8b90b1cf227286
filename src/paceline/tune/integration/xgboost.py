"""XGBoost in a trial: `xgboost.train(..., callbacks=[TuneReportCheckpointCallback(...)])`."""

from paceline.train.xgboost.callback import ReportCallback

TuneReportCheckpointCallback = ReportCallback
TuneReportCallback = ReportCallback
