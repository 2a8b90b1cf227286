"""The classes for the package `pytorch_lightning`."""

from __future__ import annotations

from typing import Any

from pytorch_lightning.callbacks import Callback, Checkpoint
from pytorch_lightning.plugins.environments import ClusterEnvironment
from pytorch_lightning.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy

from paceline.train.lightning.environment import Environment
from paceline.train.lightning.report import Reporting
from paceline.train.lightning.strategy import InOurGroup, OnGpus
from paceline.train.lightning.tuned import TunedReporting


class PacelineLightningEnvironment(Environment, ClusterEnvironment):  # type: ignore[misc]
    __doc__ = Environment.__doc__


class PacelineDDPStrategy(InOurGroup, DDPStrategy):  # type: ignore[misc]
    """Lightning's `DDPStrategy` among the workers of a `TorchTrainer`. Takes the same arguments."""

    environment = PacelineLightningEnvironment


class PacelineFSDPStrategy(OnGpus, InOurGroup, FSDPStrategy):  # type: ignore[misc]
    """Lightning's `FSDPStrategy` among the workers of a `TorchTrainer`. Takes the same arguments."""

    environment = PacelineLightningEnvironment


class PacelineDeepSpeedStrategy(OnGpus, InOurGroup, DeepSpeedStrategy):  # type: ignore[misc]
    """Lightning's `DeepSpeedStrategy` among the workers of a `TorchTrainer`. Takes the same arguments."""

    environment = PacelineLightningEnvironment
    requires = ("deepspeed",)


class ReportCallback(Reporting, Callback):  # type: ignore[misc]
    __doc__ = Reporting.__doc__
    called_last = Checkpoint


class TuneReportCheckpointCallback(TunedReporting, Callback):  # type: ignore[misc]
    __doc__ = TunedReporting.__doc__
    called_last = Checkpoint


class TuneReportCallback(TuneReportCheckpointCallback):
    """The same without checkpoints."""

    def __init__(self, metrics: Any = None, on: Any = "validation_end") -> None:
        super().__init__(metrics, save_checkpoints=False, on=on)


RayDDPStrategy = PacelineDDPStrategy
RayFSDPStrategy = PacelineFSDPStrategy
RayDeepSpeedStrategy = PacelineDeepSpeedStrategy
RayLightningEnvironment = PacelineLightningEnvironment
RayTrainReportCallback = ReportCallback
