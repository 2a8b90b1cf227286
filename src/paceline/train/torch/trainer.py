"""TorchTrainer: a data-parallel trainer whose workers share a torch process group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from paceline.train.backend import BackendConfig
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig, ScalingConfig
from paceline.train.driver.datasets import DataConfig
from paceline.train.driver.validation import ValidationConfig
from paceline.train.torch.config import TorchConfig
from paceline.train.trainer import DataParallelTrainer


class TorchTrainer(DataParallelTrainer):
    """Trains with PyTorch on many workers.

    def train_func(config):
        model = prepare_model(Net())
        loader = prepare_data_loader(DataLoader(data, batch_size=config["batch_size"], shuffle=True))
        ...
        train.report({"loss": loss}, checkpoint=checkpoint)

    TorchTrainer(train_func, train_loop_config={...}, scaling_config=ScalingConfig(num_workers=4)).fit()
    """

    _default_backend: ClassVar[Callable[[], BackendConfig]] = TorchConfig
    _backend_argument: ClassVar[str] = "torch_config"

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        torch_config: TorchConfig | None = None,
        scaling_config: ScalingConfig | Mapping[str, Any] | None = None,
        run_config: RunConfig | Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        validation_config: ValidationConfig | Mapping[str, Any] | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=torch_config,
            scaling_config=scaling_config,
            run_config=run_config,
            resume_from_checkpoint=resume_from_checkpoint,
            validation_config=validation_config,
            datasets=datasets,
            dataset_config=dataset_config,
        )
