"""One driver at a time: who may write a run, and how everybody else finds out.

A lease has a number, and the highest number holds. Its holder renews it; one that stays silent for `ttl_s` may be
succeeded by the next number. Nobody can take a lease from a driver that is only paused, so a driver asks before each
act that changes the run (`check`), and readers pass over what an older number did too late: see G6 in docs/concepts.
Where the lease lies is a `Slot`. What to do about a holder that is found there is `decided` without effects.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec
from msgspec.structs import replace

from paceline._core import system
from paceline._core.clock import Clock
from paceline._core.errors import RunHeldError, StorageError

log = logging.getLogger("paceline")

_held_here: set[str] = set()
"""The tokens of the leases that this process holds."""

SKEW_S = 300.0
"""By how much the clocks of two machines are taken to differ at most."""


class Holder(msgspec.Struct, frozen=True):
    number: int
    """Counts the drivers that have held the run."""
    pid: int = 0
    started: int = 0
    """When its process was started; together with `pid` this is no other process of the machine."""
    machine: str = ""
    """One boot of one machine, as far as its processes can see each other."""
    host: str = ""
    since: float = 0.0
    renewed_at: float = 0.0
    """On the wall clock of its machine."""
    beat: float = 0.0
    """The same on the clock that only moves forward, which all processes of `machine` share."""
    ttl_s: float = 30.0
    token: str = ""
    """Tells it from others that wanted the same number, where the answer to taking it was lost."""
    released: bool = False
    alone: bool = False
    """No earlier driver has the journal open: each is known to have ended, or was left with a copy of its own."""
    controller: str = ""
    """Of a driver that something else starts again when it is lost: the same in each of its lives."""


@dataclass(frozen=True)
class Seen:
    """A lease as it lay there; `tag` changes whenever it does."""

    holder: Holder
    tag: str


class Slot(Protocol):
    """Where the lease of a run lies."""

    @property
    def run(self) -> str:
        """The run's name, for people."""
        ...

    def read(self) -> Seen | None: ...
    def take(self, holder: Holder, after: Seen | None) -> str | None:
        """Put the next number in force, and return its tag; None where somebody else was faster."""
        ...

    def renew(self, holder: Holder, tag: str) -> str | None:
        """Write the holder anew; None where its number is no longer in force."""
        ...


class Fence(Protocol):
    """What a driver asks before it changes the run."""

    @property
    def number(self) -> int: ...
    def check(self) -> None:
        """Look at storage: `RunHeldError` where another driver has taken the run."""
        ...

    def raise_if_lost(self) -> None:
        """The same from memory, as of the last look."""
        ...


class Unfenced:
    """For what is written where no second driver can be."""

    number = 0

    def check(self) -> None:
        pass

    def raise_if_lost(self) -> None:
        pass


UNFENCED = Unfenced()


@dataclass(frozen=True)
class Take:
    gone: bool
    """The holder before is known to have ended; otherwise it may come back."""


@dataclass(frozen=True)
class Refuse:
    lapses_in_s: float


@dataclass(frozen=True)
class Watch:
    """It cannot be told from here whether the holder is alive: see whether it renews."""

    at_most_s: float


@dataclass(frozen=True)
class Watched:
    """A holder as it was first seen."""

    holder: Holder
    since: float


def decided(
    holder: Holder | None,
    *,
    alive: bool | None,
    watched: Watched | None,
    now: float,
    wall: float,
    controller: str = "",
) -> Take | Refuse | Watch:
    """What becomes of a driver that wants the run.

    `alive`: whether the holder's process exists, where this can be known, which is on its own machine only. Wall
    clocks of two machines are compared only by more than they could differ. `controller`: that of the driver.
    """
    if holder is None or holder.released or alive is False:
        return Take(gone=True)
    if controller and holder.controller == controller:
        # An earlier life of this very driver. Whoever started the next one takes it for lost; if it is only cut off,
        # it is fenced as one that was paused.
        return Take(gone=False)
    if watched is not None and watched.holder != holder:
        return Refuse(holder.ttl_s)
    silent_s = now - holder.beat
    if alive and silent_s >= 0.0:
        return Take(gone=False) if silent_s > holder.ttl_s else Refuse(holder.ttl_s - silent_s)
    if wall - holder.renewed_at > holder.ttl_s + SKEW_S:
        return Take(gone=False)
    watched_s = now - watched.since if watched is not None else 0.0
    return Take(gone=False) if watched_s > holder.ttl_s else Watch(holder.ttl_s - watched_s)


def is_alive(holder: Holder) -> bool | None:
    """Whether the holder's process exists; None where that cannot be seen from here."""
    if holder.pid == os.getpid() and holder.machine == system.machine_id() and holder.token not in _held_here:
        return False  # This process has let it go, but could not write that down.
    if holder.host != socket.gethostname() or holder.machine != system.machine_id():
        return None
    return system.is_running(holder.pid, holder.started)


def taken(
    slot: Slot,
    *,
    ttl_s: float,
    clock: Clock,
    say: Callable[[str], None],
    wait: Callable[[float], None] = time.sleep,
    alive: Callable[[Holder], bool | None] = is_alive,
    controller: str = "",
) -> Lease:
    """The lease, held from now on; `RunHeldError` where another driver holds it. It is not kept up before `keep`.

    `controller`: see `Holder`.
    """
    watched: Watched | None = None
    while True:
        seen = slot.read()
        before = seen.holder if seen is not None else None
        decision = decided(
            before,
            alive=alive(before) if before is not None else None,
            watched=watched,
            now=clock.now(),
            wall=clock.wall(),
            controller=controller,
        )
        match decision:
            case Take(gone=gone):
                holder = _me(before, gone, ttl_s, clock, controller)
                tag = slot.take(holder, seen)
                if tag is not None:
                    return Lease(slot, holder, tag, clock)
                watched = None  # Somebody was faster: it is another holder now.
            case Refuse(lapses_in_s=lapses_in_s):
                assert before is not None
                raise RunHeldError(_held(slot.run, before, lapses_in_s))
            case Watch(at_most_s=at_most_s):
                assert before is not None
                if watched is None:
                    watched = Watched(before, clock.now())
                    say(
                        f"run {slot.run!r} is held by {_told(before)}: waiting up to {at_most_s:.0f} s "
                        "to see whether it is still there"
                    )
                wait(min(1.0, before.ttl_s / 10, at_most_s + 0.001))


class Lease:
    """A lease that this process holds. From `keep` to `close` a thread renews it three times within `ttl_s`."""

    def __init__(self, slot: Slot, holder: Holder, tag: str, clock: Clock) -> None:
        self.holder = holder
        self._slot = slot
        self._tag = tag
        self._clock = clock
        self._lock = threading.Lock()
        """Over `holder`, `_tag` and `_lost`: the keeper, the storage thread and the controller all renew."""
        self._lost: str | None = None
        _held_here.add(holder.token)
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="paceline-lease", daemon=True)

    @property
    def number(self) -> int:
        return self.holder.number

    @property
    def lost(self) -> bool:
        return self._lost is not None

    def keep(self) -> None:
        self._keeper.start()

    def check(self) -> None:
        try:
            # Not only read: a write is what makes a network filesystem look at the server, and not at its own cache.
            self._renew()
        except RunHeldError:
            raise
        except OSError as problem:
            silent_s = self._clock.now() - self.holder.beat
            if silent_s > self.holder.ttl_s:
                raise StorageError(
                    f"the lease of run {self._slot.run!r} could not be renewed for {silent_s:.0f} s ({problem}), "
                    "so another driver may take the run"
                ) from problem
            with self._lock:
                seen = self._slot.read()
                if seen is None or seen.holder.number != self.number:
                    self._lose(seen)
            self.raise_if_lost()

    def raise_if_lost(self) -> None:
        if self._lost is not None:
            raise RunHeldError(self._lost)

    def settle(self) -> None:
        """Say that no earlier driver has the journal open any more."""
        if not self.holder.alone:
            self._renew(alone=True)

    def close(self) -> None:
        """Let the next driver in at once."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._keeper.ident is not None:
            self._keeper.join()
        _held_here.discard(self.holder.token)
        if self._lost is None:
            try:
                self._renew(released=True)
            except RunHeldError:
                pass  # There is a next driver already.
            except OSError as problem:
                log.warning("the lease could not be given back, and lapses in %.0f s: %s", self.holder.ttl_s, problem)

    def _renew(self, *, alone: bool = False, released: bool = False) -> None:
        with self._lock:
            self.raise_if_lost()
            holder = replace(
                self.holder,
                renewed_at=self._clock.wall(),
                beat=self._clock.now(),
                alone=alone or self.holder.alone,
                released=released,
            )
            tag = self._slot.renew(holder, self._tag)
            if tag is None:
                self._lose(self._slot.read())
            else:
                self.holder, self._tag = holder, tag
        self.raise_if_lost()

    def _lose(self, seen: Seen | None) -> None:
        silent_s = self._clock.now() - self.holder.beat
        who = f"was taken over by {_told(seen.holder)}" if seen is not None else "has lost its lease, which was removed"
        self._lost = (
            f"run {self._slot.run!r} {who}\n\n"
            f"  this driver, process {self.holder.pid} on {self.holder.host}, had not renewed its lease "
            f"for {silent_s:.0f} s (PACELINE_LEASE_TTL_S={self.holder.ttl_s:g})\n\n"
            "hint: let the other driver finish, or end it and run this script again. "
            "What this driver had committed before is part of the run"
        )

    def _keep(self) -> None:
        failing = False
        while not self._closing.wait(self.holder.ttl_s / 3):
            try:
                self._renew()
                failing = False
            except RunHeldError:
                return  # The controller asks in each of its rounds.
            except OSError as problem:
                if not failing:
                    log.warning("the lease of run %r could not be renewed, tried again: %s", self._slot.run, problem)
                failing = True


def _me(before: Holder | None, gone: bool, ttl_s: float, clock: Clock, controller: str) -> Holder:
    pid = os.getpid()
    wall = clock.wall()
    return Holder(
        number=before.number + 1 if before is not None else 1,
        pid=pid,
        started=system.process_started(pid),
        machine=system.machine_id(),
        host=socket.gethostname(),
        since=wall,
        renewed_at=wall,
        beat=clock.now(),
        ttl_s=ttl_s,
        token=os.urandom(8).hex(),
        alone=before is None or (gone and before.alone),
        controller=controller,
    )


def _told(holder: Holder) -> str:
    if not holder.pid:
        return "another driver"
    since = datetime.fromtimestamp(holder.since).strftime("%Y-%m-%d %H:%M:%S")
    return f"process {holder.pid} on {holder.host}, since {since}"


def _held(run: str, holder: Holder, lapses_in_s: float) -> str:
    if holder.controller:
        return (
            f"run {run!r} is being written by a detached controller, {_told(holder)}\n\n"
            "hint: `paceline attach RUN` follows it, and so does this script with RunConfig(detached=True); "
            "or give this run another RunConfig(name=...)"
        )
    return (
        f"run {run!r} is being written by {_told(holder)}\n\n"
        f"hint: wait for it, or end that process (kill {holder.pid} on {holder.host}) and run this script again, "
        "or give this run another RunConfig(name=...). "
        f"If it is stuck, its lease lapses in {lapses_in_s:.0f} s, and this script can take over"
    )
