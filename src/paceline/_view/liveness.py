"""Detects whether a driver holds a run, by the same rules as a driver that wants to take it."""

from __future__ import annotations

from paceline._core.clock import Clock, SystemClock
from paceline._storage.lease import AcquireLease, HolderWatch, LeaseStore, RefuseLease, decide_lease, is_holder_alive
from paceline._storage.run_location import RunLocation


class Liveness:
    """Liveness of one run. A holder on another machine is watched from call to call."""

    def __init__(self, home: RunLocation, clock: Clock | None = None) -> None:
        self._location = home
        self._lease_store: LeaseStore | None = None
        self._clock = clock if clock is not None else SystemClock()
        self._watched: HolderWatch | None = None
        self.lease_number = 0
        """The lease number at the last check."""

    def is_held(self) -> bool:
        """Return False if the driver has ended, has released the lease, or has been silent for too long."""
        if self._lease_store is None:
            self._lease_store = self._location.open_lease_store()
        seen = self._lease_store.read()
        if seen is None:
            return False
        holder = seen.holder
        self.lease_number = holder.number
        decision = decide_lease(
            holder, alive=is_holder_alive(holder), watched=self._watched, now=self._clock.now(), wall=self._clock.wall()
        )
        if isinstance(decision, RefuseLease):
            self._watched = None
        elif self._watched is None or self._watched.holder != holder:
            self._watched = HolderWatch(holder, self._clock.now())
        return not isinstance(decision, AcquireLease)
