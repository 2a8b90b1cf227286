"""Whether somebody drives a run: looked at from outside, and as one who wants to drive it would look at it."""

from __future__ import annotations

from paceline._core.clock import Clock, SystemClock
from paceline._storage.home import Home
from paceline._storage.lease import Refuse, Slot, Take, Watched, decided, is_alive


class Liveness:
    """Of one run. A holder on another machine is watched from one look to the next."""

    def __init__(self, home: Home, clock: Clock | None = None) -> None:
        self._home = home
        self._slot: Slot | None = None
        self._clock = clock if clock is not None else SystemClock()
        self._watched: Watched | None = None
        self.lease = 0
        """The number under which it was held when this last looked."""

    def is_held(self) -> bool:
        """False where the driver is known to have ended, has let go, or has been silent for longer than it may."""
        if self._slot is None:
            self._slot = self._home.slot()
        seen = self._slot.read()
        if seen is None:
            return False
        holder = seen.holder
        self.lease = holder.number
        decision = decided(
            holder, alive=is_alive(holder), watched=self._watched, now=self._clock.now(), wall=self._clock.wall()
        )
        if isinstance(decision, Refuse):
            self._watched = None
        elif self._watched is None or self._watched.holder != holder:
            self._watched = Watched(holder, self._clock.now())
        return not isinstance(decision, Take)
