"""JaxTrainer: a data-parallel trainer whose workers are the processes of one JAX program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from paceline.train.backend import BackendConfig
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig, ScalingConfig
from paceline.train.driver.datasets import DataConfig
from paceline.train.driver.validation import ValidationConfig
from paceline.train.jax.config import JaxConfig
from paceline.train.trainer import DataParallelTrainer


class JaxTrainer(DataParallelTrainer):
    """Trains with JAX on many workers, each of which sees the devices of all.

    def train_func(config):
        mesh = jax.make_mesh((jax.device_count(),), ("data",))
        rows = NamedSharding(mesh, PartitionSpec("data"))
        for batch in train.get_dataset_shard("train").iter_jax_batches(batch_size=64, sharding=rows):
            state, loss = step(state, batch)
        train.report({"loss": loss}, checkpoint=OrbaxCheckpoint.from_pytree(state))

    JaxTrainer(train_func, train_loop_config={...}, scaling_config=ScalingConfig(num_workers=4)).fit()
    """

    _default_backend: ClassVar[Callable[[], BackendConfig]] = JaxConfig
    _backend_argument: ClassVar[str] = "jax_config"

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        jax_config: JaxConfig | None = None,
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
            backend_config=jax_config,
            scaling_config=scaling_config,
            run_config=run_config,
            resume_from_checkpoint=resume_from_checkpoint,
            validation_config=validation_config,
            datasets=datasets,
            dataset_config=dataset_config,
        )
