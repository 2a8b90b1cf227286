"""Barriers between the workers of one attempt. Not persisted: they end with the attempt."""

from paceline._engine.messages import Joined, Release, WorkerFailure


class Barriers:
    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: dict[int, dict[int, Joined]] = {}
        self._num_released = 0
        self._returned: dict[int, None] = {}
        self._mismatch_reported = False

    def join(self, event: Joined) -> Release | None:
        """Add a rank; return the release for all ranks once the last has joined."""
        if event.number <= self._num_released:
            return None  # Duplicate.
        here = self._waiting.setdefault(event.number, {})
        here[event.rank] = event
        if len(here) < self._size:
            return None
        del self._waiting[event.number]
        self._num_released = event.number
        if any(each.gathers for each in here.values()):
            return Release(event.number, here[0].data, tuple(here[rank].data for rank in range(self._size)))
        return Release(event.number, here[0].data)

    def mark_returned(self, rank: int) -> None:
        self._returned[rank] = None

    def clear_returned(self) -> None:
        """The ranks have received another task."""
        self._returned.clear()

    def find_mismatch(self, wall: float) -> WorkerFailure | None:
        """Find a rank that waits at a barrier which another rank, having returned, will never join. Reported once."""
        if self._mismatch_reported:
            return None
        for number, here in self._waiting.items():
            for rank in self._returned:
                if rank not in here:
                    waiting = next(iter(here.values()))
                    message = (
                        f"ReportMismatchError: rank {waiting.rank} waits for every rank in collective call {number}, "
                        f"made at {waiting.where}, but rank {rank} has returned without it"
                    )
                    self._mismatch_reported = True
                    return WorkerFailure(
                        waiting.rank, "mismatch", message, at=wall, frames=(waiting.where,), retriable=False
                    )
        return None
