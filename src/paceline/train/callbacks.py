"""What a user's own code may watch from the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.train.checkpoint import Checkpoint


@dataclass(frozen=True)
class TrainRunContext:
    """The run that a callback is told about."""

    run_id: str
    run_config: Any
    train_loop_config: Any
    scaling_config: Any
    backend_config: Any


class UserCallback:
    """Subclass this and pass it in `RunConfig(callbacks=[...])`. It runs in the driver.

    Training does not wait for a callback's opinion: one that raises is dropped with its traceback.
    """

    def after_report(
        self, run_context: TrainRunContext, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        """Every rank has made its next report: here are the metrics, by rank, and the checkpoint if there was one.

        With a checkpoint, it is called once that is committed.
        """

    def after_exception(self, run_context: TrainRunContext, worker_exceptions: dict[int, BaseException]) -> None:
        """Workers have failed, whether or not they will be restarted."""
