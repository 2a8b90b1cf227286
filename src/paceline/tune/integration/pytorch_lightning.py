"""Lightning in a trial: `Trainer(callbacks=[TuneReportCheckpointCallback({"loss": "val_loss"})])`."""

from paceline.tune.integration.lightning import __all__ as __all__
from paceline.tune.integration.lightning import __getattr__ as __getattr__
