"""The lease of a run: which driver may write it, and how a driver notices that it lost the lease.

A lease has a number, and the highest number holds. The holder renews it; if it is silent for `ttl_s`, another driver
may take the next number. A paused driver may wake up later, so a driver calls `check` before each change to the run,
and readers ignore what an older number wrote too late: see G6 in docs/concepts.
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
from paceline._core.errors import RunHeldError, StorageError
from paceline._core.system import Clock

log = logging.getLogger("paceline")

_held_tokens: set[str] = set()
"""Tokens of the leases that this process holds."""

MAX_CLOCK_SKEW_S = 300.0
"""The largest difference assumed between the clocks of two machines."""


class LeaseHolder(msgspec.Struct, frozen=True):
    number: int
    """Counts the drivers that have held the run."""
    pid: int = 0
    started: int = 0
    """Start time of the process; with `pid` it identifies one process of the machine."""
    machine: str = ""
    """Identifies one boot of one machine, within one PID namespace."""
    host: str = ""
    since: float = 0.0
    renewed_at: float = 0.0
    """Wall-clock time of its machine."""
    beat: float = 0.0
    """The same time on the monotonic clock, which all processes of `machine` share."""
    ttl_s: float = 30.0
    token: str = ""
    """Identifies this holder among others that wanted the same number, if the reply to acquiring it was lost."""
    released: bool = False
    alone: bool = False
    """No earlier driver has the journal open: each has ended, or was left with a copy of its own."""
    controller: str = ""
    """Set if something restarts this driver when it is lost: the same value after each restart."""


@dataclass(frozen=True)
class LeaseObservation:
    """A lease as it was read; `tag` changes whenever the lease does."""

    holder: LeaseHolder
    tag: str


class LeaseStore(Protocol):
    """Where the lease of a run is stored."""

    @property
    def run(self) -> str:
        """The run's name, for messages."""

    def read(self) -> LeaseObservation | None: ...
    def try_acquire(self, holder: LeaseHolder, after: LeaseObservation | None) -> str | None:
        """Acquire the next number and return its tag; None if another driver was faster."""

    def renew(self, holder: LeaseHolder, tag: str) -> str | None:
        """Renew the lease and return its new tag; None if its number is no longer in force."""


class Fence(Protocol):
    """Checks that a driver still holds the run before it changes it."""

    @property
    def number(self) -> int: ...
    def check(self) -> None:
        """Read storage; raise `RunHeldError` if another driver has taken the run."""

    def raise_if_lost(self) -> None:
        """The same without I/O, as of the last check."""

    def check_if_overdue(self) -> None:
        """`check` if the lease was not renewed for so long that another driver may have it; else `raise_if_lost`."""


class NoFence:
    """For writes where no second driver is possible."""

    number = 0

    def check(self) -> None:
        pass

    def raise_if_lost(self) -> None:
        pass

    def check_if_overdue(self) -> None:
        pass


UNFENCED = NoFence()


@dataclass(frozen=True)
class AcquireLease:
    is_holder_gone: bool
    """The previous holder is known to have ended; otherwise it may come back."""


@dataclass(frozen=True)
class RefuseLease:
    expires_in_s: float


@dataclass(frozen=True)
class WatchHolder:
    """Unknown whether the holder is alive: watch whether it renews the lease."""

    max_wait_s: float


@dataclass(frozen=True)
class HolderWatch:
    """A holder as it was first observed."""

    holder: LeaseHolder
    since: float


def decide_lease(
    holder: LeaseHolder | None,
    *,
    alive: bool | None,
    watched: HolderWatch | None,
    now: float,
    wall: float,
    controller: str = "",
) -> AcquireLease | RefuseLease | WatchHolder:
    """Decide whether a driver may take the run.

    `alive`: whether the holder's process exists; None if unknown, as on another machine. Wall clocks of two machines
    are compared only beyond their maximum skew. `controller`: that of the driver that wants the run.
    """
    if holder is None or holder.released or alive is False:
        return AcquireLease(is_holder_gone=True)
    if controller and holder.controller == controller:
        # An earlier incarnation of this very driver. Whoever restarted it considers it lost; if it is only cut off, it
        # is fenced like a paused one.
        return AcquireLease(is_holder_gone=False)
    if watched is not None and watched.holder != holder:
        return RefuseLease(holder.ttl_s)
    silent_s = now - holder.beat
    if alive and silent_s >= 0.0:
        return AcquireLease(is_holder_gone=False) if silent_s > holder.ttl_s else RefuseLease(holder.ttl_s - silent_s)
    if wall - holder.renewed_at > holder.ttl_s + MAX_CLOCK_SKEW_S:
        return AcquireLease(is_holder_gone=False)
    watched_s = now - watched.since if watched is not None else 0.0
    return AcquireLease(is_holder_gone=False) if watched_s > holder.ttl_s else WatchHolder(holder.ttl_s - watched_s)


def is_holder_alive(holder: LeaseHolder) -> bool | None:
    """Whether the holder's process exists; None if this machine cannot know."""
    if holder.pid == os.getpid() and holder.machine == system.machine_id() and holder.token not in _held_tokens:
        return False  # This process released it but could not record that.
    if holder.host != socket.gethostname() or holder.machine != system.machine_id():
        return None
    return system.is_running(holder.pid, holder.started)


def acquire_lease(
    lease_store: LeaseStore,
    *,
    ttl_s: float,
    clock: Clock,
    say: Callable[[str], None],
    wait: Callable[[float], None] = time.sleep,
    alive: Callable[[LeaseHolder], bool | None] = is_holder_alive,
    controller: str = "",
) -> Lease:
    """Acquire the lease, or raise `RunHeldError` if another driver holds it. `start_renewing` must follow."""
    watched: HolderWatch | None = None
    while True:
        observation = lease_store.read()
        before = observation.holder if observation is not None else None
        decision = decide_lease(
            before,
            alive=alive(before) if before is not None else None,
            watched=watched,
            now=clock.now(),
            wall=clock.wall(),
            controller=controller,
        )
        match decision:
            case AcquireLease(is_holder_gone=is_gone):
                holder = _make_holder(before, is_gone, ttl_s, clock, controller)
                tag = lease_store.try_acquire(holder, observation)
                if tag is not None:
                    return Lease(lease_store, holder, tag, clock)
                watched = None  # Somebody was faster: the holder has changed.
            case RefuseLease(expires_in_s=expires_in_s):
                assert before is not None
                raise RunHeldError(_format_held_error(lease_store.run, before, expires_in_s))
            case WatchHolder(max_wait_s=max_wait_s):
                assert before is not None
                if watched is None:
                    watched = HolderWatch(before, clock.now())
                    say(
                        f"run {lease_store.run!r} is held by {_describe_holder(before)}; "
                        f"waiting up to {max_wait_s:.0f} s for a sign of life"
                    )
                wait(min(1.0, before.ttl_s / 10, max_wait_s + 0.001))


class Lease:
    """A lease that this process holds. From `start_renewing` to `close`, a thread renews it three times per `ttl_s`."""

    def __init__(self, lease_store: LeaseStore, holder: LeaseHolder, tag: str, clock: Clock) -> None:
        self.holder = holder
        self._lease_store = lease_store
        self._tag = tag
        self._clock = clock
        self._lock = threading.Lock()
        """Protects `holder`, `_tag` and `_lost`: the keeper, the storage thread and the controller all renew."""
        self._lost_reason: str | None = None
        _held_tokens.add(holder.token)
        self._closing = threading.Event()
        self._renewal_thread = threading.Thread(target=self._renew_until_closed, name="paceline-lease", daemon=True)

    @property
    def number(self) -> int:
        return self.holder.number

    @property
    def is_lost(self) -> bool:
        return self._lost_reason is not None

    def start_renewing(self) -> None:
        self._renewal_thread.start()

    def check(self) -> None:
        try:
            # Writes, since only a write makes a network filesystem ask the server and not its own cache.
            self._renew()
        except RunHeldError:
            raise
        except OSError as problem:
            silent_s = self._clock.now() - self.holder.beat
            if silent_s > self.holder.ttl_s:
                raise StorageError(
                    f"cannot renew the lease of run {self._lease_store.run!r}, last renewed {silent_s:.0f} s ago, "
                    f"so another driver may take the run: {problem}"
                ) from problem
            with self._lock:
                observation = self._lease_store.read()
                if observation is None or observation.holder.number != self.number:
                    self._mark_lost(observation)
            self.raise_if_lost()

    def raise_if_lost(self) -> None:
        if self._lost_reason is not None:
            raise RunHeldError(self._lost_reason)

    def check_if_overdue(self) -> None:
        self.raise_if_lost()
        # A restarted controller takes over at once, and waits for no lease to lapse.
        if self.holder.controller or self._clock.now() - self.holder.beat > self.holder.ttl_s:
            self.check()

    def mark_alone(self) -> None:
        """Record that no earlier driver has the journal open any more."""
        if not self.holder.alone:
            self._renew(alone=True)

    def close(self) -> None:
        """Release the lease, so that the next driver can start at once."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._renewal_thread.ident is not None:
            self._renewal_thread.join()
        _held_tokens.discard(self.holder.token)
        if self._lost_reason is None:
            try:
                self._renew(released=True)
            except RunHeldError:
                pass  # There is a next driver already.
            except OSError as problem:
                log.warning("cannot release the lease, which expires in %.0f s: %s", self.holder.ttl_s, problem)

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
            tag = self._lease_store.renew(holder, self._tag)
            if tag is None:
                self._mark_lost(self._lease_store.read())
            else:
                self.holder, self._tag = holder, tag
        self.raise_if_lost()

    def _mark_lost(self, observation: LeaseObservation | None) -> None:
        silent_s = self._clock.now() - self.holder.beat
        reason = (
            f"was taken over by {_describe_holder(observation.holder)}"
            if observation is not None
            else "has lost its lease: the lease was removed"
        )
        self._lost_reason = (
            f"run {self._lease_store.run!r} {reason}\n\n"
            f"  this driver, process {self.holder.pid} on {self.holder.host}, had not renewed its lease "
            f"for {silent_s:.0f} s (PACELINE_LEASE_TTL_S={self.holder.ttl_s:g})\n\n"
            "hint: let the other driver finish, or end it and run this script again. "
            "Everything this driver committed is part of the run"
        )

    def _renew_until_closed(self) -> None:
        failing = False
        while not self._closing.wait(self.holder.ttl_s / 3):
            try:
                self._renew()
                failing = False
            except RunHeldError:
                return  # The controller checks in each of its rounds.
            except OSError as problem:
                if not failing:
                    log.warning("cannot renew the lease of run %r, will retry: %s", self._lease_store.run, problem)
                failing = True


def _make_holder(before: LeaseHolder | None, is_gone: bool, ttl_s: float, clock: Clock, controller: str) -> LeaseHolder:
    pid = os.getpid()
    wall = clock.wall()
    return LeaseHolder(
        number=before.number + 1 if before is not None else 1,
        pid=pid,
        started=system.process_start_ticks(pid),
        machine=system.machine_id(),
        host=socket.gethostname(),
        since=wall,
        renewed_at=wall,
        beat=clock.now(),
        ttl_s=ttl_s,
        token=os.urandom(8).hex(),
        alone=before is None or (is_gone and before.alone),
        controller=controller,
    )


def _describe_holder(holder: LeaseHolder) -> str:
    if not holder.pid:
        return "another driver"
    since = datetime.fromtimestamp(holder.since).strftime("%Y-%m-%d %H:%M:%S")
    return f"process {holder.pid} on {holder.host}, since {since}"


def _format_held_error(run: str, holder: LeaseHolder, expires_in_s: float) -> str:
    if holder.controller:
        return (
            f"run {run!r} is being written by a detached controller, {_describe_holder(holder)}\n\n"
            "hint: `paceline attach RUN` follows it, and so does this script with RunConfig(detached=True); "
            "or give this run another RunConfig(name=...)"
        )
    return (
        f"run {run!r} is being written by {_describe_holder(holder)}\n\n"
        f"hint: wait for it, or end that process (kill {holder.pid} on {holder.host}) and run this script again, "
        "or give this run another RunConfig(name=...). "
        f"If it is stuck, its lease expires in {expires_in_s:.0f} s, and this script can take over"
    )
