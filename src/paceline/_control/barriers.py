"""Barriers between the workers of one attempt. Nothing of them is kept: with the attempt they are gone."""

from paceline._engine.messages import Failure, Joined, Release


class Barriers:
    def __init__(self, size: int) -> None:
        self._size = size
        self._joined: dict[int, dict[int, Joined]] = {}
        self._num_released = 0
        self._returned: dict[int, None] = {}
        self._told = False

    def joined(self, event: Joined) -> Release | None:
        """The answer to all ranks once the last of them has come."""
        if event.number <= self._num_released:
            return None  # Said twice.
        here = self._joined.setdefault(event.number, {})
        here[event.rank] = event
        if len(here) < self._size:
            return None
        del self._joined[event.number]
        self._num_released = event.number
        if any(each.gathers for each in here.values()):
            return Release(event.number, here[0].data, tuple(here[rank].data for rank in range(self._size)))
        return Release(event.number, here[0].data)

    def returned(self, rank: int) -> None:
        self._returned[rank] = None

    def ordered(self) -> None:
        """Those that had done an order have got another."""
        self._returned.clear()

    def mismatch(self, wall: float) -> Failure | None:
        """A rank stands at a barrier that another, having returned, will never come to. Told once."""
        if self._told:
            return None
        for number, here in self._joined.items():
            for rank in self._returned:
                if rank not in here:
                    waiting = next(iter(here.values()))
                    message = (
                        f"ReportMismatchError: rank {waiting.rank} waits for every rank in collective call {number}, "
                        f"made at {waiting.where}, but rank {rank} has returned without it"
                    )
                    self._told = True
                    return Failure(waiting.rank, "mismatch", message, at=wall, frames=(waiting.where,), retriable=False)
        return None
