"""JaxTrainer: a data-parallel trainer whose workers are the processes of one JAX program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from paceline.train.jax.config import JaxConfig
from paceline.train.trainer import DataParallelTrainer, TrainerOptions


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

    _default_backend = JaxConfig
    _backend_argument = "jax_config"

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        jax_config: JaxConfig | None = None,
        **arguments: Unpack[TrainerOptions],
    ) -> None:
        super().__init__(train_loop_per_worker, backend_config=jax_config, **arguments)
