"""The XGBoost backend: a communicator around the user's function, and the tracker that connects its workers."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline._core.arguments import check_choice, check_number
from paceline.train.backend import BackendConfig

if TYPE_CHECKING:
    from paceline._worker.context import WorkerContext


@dataclass(frozen=True)
class XGBoostConfig(BackendConfig):
    """Configuration of XGBoost's communicator.

    `xgboost_communicator`: `rabit`, which needs no other package. `timeout_s` is how long workers wait for each other
    to connect and in each collective.
    """

    xgboost_communicator: str = "rabit"
    timeout_s: float = 1800

    requires: ClassVar[tuple[str, ...]] = ("xgboost",)
    extra: ClassVar[str] = "xgboost"
    # Nothing is preloaded: forked workers import XGBoost themselves, so none of its state is ever forked.

    def __post_init__(self) -> None:
        check_choice("xgboost_communicator", self.xgboost_communicator, ["rabit"])
        check_number("timeout_s", self.timeout_s, above=0)

    @contextlib.contextmanager
    def around(self, context: WorkerContext) -> Iterator[None]:
        if context.begin.world_size == 1:
            yield
            return
        from xgboost.collective import CommunicatorContext

        tracker, arguments = self._rendezvous(context)
        communicator = CommunicatorContext(**arguments)
        communicator.__enter__()
        try:
            yield
        except Exception as error:
            if tracker is not None:
                # Otherwise its destructor would log an error about the failure we already know.
                vars(tracker).pop("handle", None)
            note_lost_peer(error)
            raise
        # Not in a `finally`: after a failure peers may be gone, and waiting for them would hide the cause.
        communicator.__exit__(None, None, None)
        if tracker is not None:
            tracker.wait_for(timeout=self._seconds)
            tracker.free()

    def _rendezvous(self, context: WorkerContext) -> tuple[Any, dict[str, Any]]:
        """Rank 0 starts the tracker on a port chosen by the system and sends its address to the others."""
        begin = context.begin
        tracker = None
        if begin.rank == 0:
            from xgboost.tracker import RabitTracker

            host = begin.node_address if begin.num_nodes > 1 else "127.0.0.1"
            tracker = RabitTracker(
                n_workers=begin.world_size, host_ip=host, port=0, sortby="task", timeout=self._seconds
            )
            tracker.start()
        reply = context.join(json.dumps(tracker.worker_args()).encode() if tracker is not None else b"")
        return tracker, make_communicator_args(json.loads(reply), begin.rank, self._seconds)

    @property
    def _seconds(self) -> int:
        return math.ceil(self.timeout_s)


def note_lost_peer(error: Exception) -> None:
    """Summarize a long XGBoost network error in one line: another worker is gone, and is the cause."""
    text = str(error)
    if type(error).__name__ == "XGBoostError" and "/collective/" in text:
        # The last line has the system's error.
        lines = [line.strip("- ") for line in text.splitlines() if line.startswith("- [")]
        error.add_note(f"connection closed by peer: {lines[-1] if lines else text.splitlines()[0]}")


def make_communicator_args(tracker_arguments: dict[str, Any], rank: int, timeout_s: int) -> dict[str, Any]:
    """Return the arguments of one rank's communicator."""
    return {
        **tracker_arguments,
        "dmlc_communicator": "rabit",
        # XGBoost assigns ranks in the order of these strings; zero padding makes them match ours.
        "dmlc_task_id": f"{rank:08d}",
        "dmlc_timeout": timeout_s,
    }
