"""Who this worker is, in Lightning's words."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from paceline.train.session import _context

if TYPE_CHECKING:
    from paceline._engine.messages import Begin


class Environment:
    """Ranks and world size are those of the run, and processes are there already: Lightning starts none.

    Our strategies bring it along; `Trainer(plugins=[PacelineLightningEnvironment()])` says the same.
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
        """Never found by itself: it is asked for, or a strategy of ours brings it."""
        return False

    def world_size(self) -> int:
        return _begin().world_size

    def set_world_size(self, size: int) -> None:
        """Not Lightning's to say."""

    def global_rank(self) -> int:
        return _begin().rank

    def set_global_rank(self, rank: int) -> None:
        """Not Lightning's to say."""

    def local_rank(self) -> int:
        return _begin().local_rank

    def node_rank(self) -> int:
        return _begin().node_rank

    def teardown(self) -> None:
        """The process group stays: it is the train function's until that returns."""


def _begin() -> Begin:
    return _context("PacelineLightningEnvironment").begin
