"""XGBoost in a trial: `xgboost.train(..., callbacks=[TuneReportCheckpointCallback(...)])`."""

from paceline.train.xgboost.model import ReportCallback

TuneReportCheckpointCallback = ReportCallback
TuneReportCallback = ReportCallback
