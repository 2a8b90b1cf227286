"""Our classes for the package `pytorch_lightning`: the same as `lightning_classes`, with the bases of this package.

Lightning comes as two packages that accept only their own classes.
"""

from pytorch_lightning.callbacks import Callback, Checkpoint
from pytorch_lightning.plugins.environments import ClusterEnvironment
from pytorch_lightning.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy

from paceline.train.lightning.report import (
    ReportCallbackMixin,
    TuneCallbackMixin,
    TuneReportCallbackMixin,
    WithoutCheckpointsMixin,
)
from paceline.train.lightning.strategy import ClusterEnvironmentMixin, PacelineStrategyMixin, RequiresGpuMixin


class PacelineLightningEnvironment(ClusterEnvironmentMixin, ClusterEnvironment):  # type: ignore[misc]
    __doc__ = ClusterEnvironmentMixin.__doc__


class PacelineDDPStrategy(PacelineStrategyMixin, DDPStrategy):  # type: ignore[misc]
    """Lightning's `DDPStrategy` for the workers of a `TorchTrainer`. Takes the same arguments."""

    environment = PacelineLightningEnvironment


class PacelineFSDPStrategy(RequiresGpuMixin, PacelineStrategyMixin, FSDPStrategy):  # type: ignore[misc]
    """Lightning's `FSDPStrategy` for the workers of a `TorchTrainer`. Takes the same arguments."""

    environment = PacelineLightningEnvironment


class PacelineDeepSpeedStrategy(RequiresGpuMixin, PacelineStrategyMixin, DeepSpeedStrategy):  # type: ignore[misc]
    """Lightning's `DeepSpeedStrategy` for the workers of a `TorchTrainer`. Takes the same arguments."""

    environment = PacelineLightningEnvironment
    requires = ("deepspeed",)


class ReportCallback(ReportCallbackMixin, Callback):  # type: ignore[misc]
    __doc__ = ReportCallbackMixin.__doc__
    last_callback_class = Checkpoint


class TuneReportCheckpointCallback(TuneReportCallbackMixin, Callback):  # type: ignore[misc]
    __doc__ = TuneReportCallbackMixin.__doc__
    last_callback_class = Checkpoint


class TuneCallback(TuneCallbackMixin, Callback):  # type: ignore[misc]
    __doc__ = TuneCallbackMixin.__doc__


class TuneReportCallback(WithoutCheckpointsMixin, TuneReportCheckpointCallback):
    """`TuneReportCheckpointCallback` without checkpoints."""


RayDDPStrategy = PacelineDDPStrategy
RayFSDPStrategy = PacelineFSDPStrategy
RayDeepSpeedStrategy = PacelineDeepSpeedStrategy
RayLightningEnvironment = PacelineLightningEnvironment
RayTrainReportCallback = ReportCallback
