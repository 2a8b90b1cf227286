"""The cluster environment that tells Lightning the ranks of this worker."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from paceline.train.session import _require_context

if TYPE_CHECKING:
    from paceline._engine.messages import WorkerInit


class ClusterEnvironmentMixin:
    """Lightning uses the ranks and world size of the run and starts no processes.

    Our strategies include it; `Trainer(plugins=[PacelineLightningEnvironment()])` is equivalent.
    """

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return os.environ["MASTER_ADDR"]

    @property
    def main_port(self) -> int:
        return int(os.environ["MASTER_PORT"])

    @staticmethod
    def detect() -> bool:
        """Never detected automatically: the user or one of our strategies provides it."""
        return False

    def world_size(self) -> int:
        return _worker_init().world_size

    def set_world_size(self, size: int) -> None:
        """Ignored: the run determines the world size."""

    def global_rank(self) -> int:
        return _worker_init().rank

    def set_global_rank(self, rank: int) -> None:
        """Ignored: the run determines the rank."""

    def local_rank(self) -> int:
        return _worker_init().local_rank

    def node_rank(self) -> int:
        return _worker_init().node_rank

    def teardown(self) -> None:
        """Keep the process group: it belongs to the train function until that returns."""


def _worker_init() -> WorkerInit:
    return _require_context("PacelineLightningEnvironment").begin
