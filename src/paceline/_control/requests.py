"""What a person may ask of a run that is being driven, by whom and how it is answered: values, and the asking.

`asked(home, Stop(), timeout_s)` leaves a request where the driver looks, waits for the answer and returns it. A request
names the driver it is meant for by the number of its lease: one that is left behind stops nobody else's run. Whoever
may write the run's `.requests` may ask.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from paceline._storage.home import Home
from paceline._storage.lease import SKEW_S, Holder, is_alive
from paceline._storage.mailbox import Mailbox

VERSION = 1
_POLL_S = 0.1
_POLL_STORE_S = 2.0
_LOOK_AT_HOLDER_S = 1.0
_RELEASED_WITHIN_S = 10.0

State = Literal[
    "done",  # of a stop: the run has ended
    "taken",  # the driver is at it, and the time was over
    "refused",
    "undriven",  # nobody drives the run
    "gone",  # the driver ended before it had answered
    "silent",  # the driver has not answered in time
]


class Stop(msgspec.Struct, frozen=True, tag=True):
    """At the next report, with a checkpoint where the script makes one on stop; or at once."""

    now: bool = False


class Stacks(msgspec.Struct, frozen=True, tag=True):
    """Where the threads of these ranks stand; of all, where none is named."""

    ranks: tuple[int, ...] = ()


class Profile(msgspec.Struct, frozen=True, tag=True):
    """Look at what these ranks do for so long. Where none is named: all, or the first `MOST_RANKS`."""

    seconds: float = 10.0
    ranks: tuple[int, ...] = ()


Want = Stop | Stacks | Profile

MOST_RANKS = 8
MAX_SECONDS = 600.0


class Request(msgspec.Struct, frozen=True):
    """As it lies there."""

    lease: int
    """The number of the driver that it is meant for."""
    at: float
    want: Want
    valid_s: float = 60.0
    """How long somebody waits for it."""
    version: int = VERSION


class Line(msgspec.Struct, frozen=True):
    """One call on a stack."""

    function: str
    where: str
    """As `train.py:41`."""
    own: bool = False
    """In the user's own files."""


class Thread(msgspec.Struct, frozen=True):
    name: str
    lines: tuple[Line, ...]
    """Innermost last."""
    calls: str = ""
    """What the innermost line calls that is no Python: `time.sleep`."""


class RankStacks(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    answers: bool
    """Where it does not, its process is stopped, gone, or in C code that keeps the GIL; `condition` has the rest."""
    condition: str = ""
    """What the system knows of its process, in words."""
    threads: tuple[Thread, ...] = ()
    """The main thread, where the user's function runs, first."""


class MadeFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the run that was made for this request."""

    kind: str
    path: str
    """Below the run's directory."""
    rank: int
    """-1: of all ranks."""
    at: float
    seconds: float = 0.0
    num_bytes: int = 0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    state: State
    text: str
    """For a person: what came of it, and what to do about it after a blank line and `hint:`."""
    ending: str | None = None
    """Of a stop: how the run ended."""
    num_reports: int | None = None
    checkpoint: str | None = None
    """Of a stop: the latest one of the run."""
    stacks: tuple[RankStacks, ...] = ()
    files: tuple[MadeFile, ...] = ()
    problems: tuple[str, ...] = ()
    """What could not be had of some rank."""

    @property
    def ok(self) -> bool:
        return self.state == "done"


encode = msgspec.json.Encoder().encode
decode_request = msgspec.json.Decoder(Request).decode
decode_answer = msgspec.json.Decoder(Answer).decode


def asked(
    home: Home, want: Want, timeout_s: float | None = None, *, heard: Callable[[Answer], None] | None = None
) -> Answer:
    """Ask the driver of a run, or of a search, for something, and return its answer.

    Never raises for what has become of the run or its driver: `Answer.state` tells, and `Answer.text` in words. Storage
    that cannot be read or written raises as ever. `timeout_s`: how long to wait; None: as long as such a thing takes.
    `heard` is called once the driver has taken a request that lasts, with an answer whose state is `taken`.
    """
    holder = holder_of(home)
    if holder is None:
        return Answer(state="undriven", text=_undriven(home))
    box, poll_s = _box(home, holder)
    wait_s = timeout_s if timeout_s is not None else _usual_s(want) + (0.0 if poll_s == _POLL_S else 20.0)
    id = secrets.token_hex(8)
    try:
        box.put(id, encode(Request(holder.number, time.time(), want, wait_s)))
    except FileNotFoundError:  # The driver has closed its mailbox since.
        return Answer(state="undriven", text=_undriven(home))
    try:
        return _waited_for(home, holder, box, id, want, wait_s, poll_s, heard)
    finally:
        box.leave(id)


def holder_of(home: Home) -> Holder | None:
    """Who drives the run now, as far as can be seen from here; None where nobody does."""
    seen = home.slot().read()
    if seen is None or seen.holder.released:
        return None
    holder = seen.holder
    alive = is_alive(holder)
    if alive is None and time.time() - holder.renewed_at > holder.ttl_s + SKEW_S:
        return None
    return None if alive is False else holder


def _box(home: Home, holder: Holder) -> tuple[Mailbox, float]:
    """Where that driver looks, and how often it is worth to look for its answer."""
    near, far = home.mailboxes()
    # The spool of a run in a store is on the driver's machine, and may be somebody else's.
    if far is None or (is_alive(holder) and near.is_open()):
        return near, _POLL_S
    return far, _POLL_STORE_S


def _usual_s(want: Want) -> float:
    match want:
        case Stop(now=now):
            return 30.0 if now else 60.0
        case Stacks():
            return 15.0
        case Profile(seconds=seconds):
            return seconds + 60.0


def _waited_for(
    home: Home,
    holder: Holder,
    box: Mailbox,
    id: str,
    want: Want,
    wait_s: float,
    poll_s: float,
    heard: Callable[[Answer], None] | None,
) -> Answer:
    taken: Answer | None = None
    begun = looked_at = time.monotonic()
    while True:
        # Looked at first: a driver that is gone by then may have answered before it went.
        now, gone = time.monotonic(), False
        if now - looked_at >= _LOOK_AT_HOLDER_S:
            looked_at = now
            there = holder_of(home)
            gone = there is None or there.number != holder.number
        data = box.answer_to(id)
        answer = decode_answer(data) if data is not None else None
        if answer is not None and answer.state != "taken":
            if isinstance(want, Stop) and answer.ok:
                _released(home, holder)
            return answer
        if answer is not None and taken is None:
            taken = answer
            if heard is not None:
                heard(answer)
        if gone:
            return Answer(state="gone", text=_gone(home, holder, want, taken))
        if now - begun >= wait_s:
            return taken or Answer(state="silent", text=_silent(home, holder, wait_s))
        time.sleep(poll_s)


def _released(home: Home, holder: Holder) -> None:
    """Wait a moment for the driver to let the run go, so that it can be continued at once."""
    end = time.monotonic() + _RELEASED_WITHIN_S
    while time.monotonic() < end:
        there = holder_of(home)
        if there is None or there.number != holder.number:
            return
        time.sleep(_POLL_S)


def _undriven(home: Home) -> str:
    return (
        f"nobody drives {home.name}: it has ended, or has lost its driver\n\n"
        f"hint: `paceline show {home.uri}` tells what has become of it; its script continues it"
    )


def _gone(home: Home, holder: Holder, want: Want, taken: Answer | None) -> str:
    after = "before it had answered" if taken is None else "while it was at it"
    return f"the driver of {home.name}, process {holder.pid} on {holder.host}, ended {after}"


def _silent(home: Home, holder: Holder, wait_s: float) -> str:
    return (
        f"the driver of {home.name}, process {holder.pid} on {holder.host}, has not answered within {wait_s:g} s\n\n"
        "hint: it may be stuck in storage or be stopped itself; the request is withdrawn. "
        f"Ended by hand (kill {holder.pid} on {holder.host}), the run goes on from its last checkpoint when its script "
        "is started again"
    )
