"""TorchTrainer: a data-parallel trainer whose workers share a torch process group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from paceline.train.torch.config import TorchConfig
from paceline.train.trainer import DataParallelTrainer, TrainerOptions


class TorchTrainer(DataParallelTrainer):
    """Trains with PyTorch on many workers.

    def train_func(config):
        model = prepare_model(Net())
        loader = prepare_data_loader(DataLoader(data, batch_size=config["batch_size"], shuffle=True))
        ...
        train.report({"loss": loss}, checkpoint=checkpoint)

    TorchTrainer(train_func, train_loop_config={...}, scaling_config=ScalingConfig(num_workers=4)).fit()
    """

    _default_backend = TorchConfig
    _backend_argument = "torch_config"

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        torch_config: TorchConfig | None = None,
        **arguments: Unpack[TrainerOptions],
    ) -> None:
        super().__init__(train_loop_per_worker, backend_config=torch_config, **arguments)
