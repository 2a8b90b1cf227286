"""Requests from people to a running driver, and its answers: the values, and the function that sends a request.

`send_request(location, StopRequest(), timeout_s)` puts a request into the driver's mailbox, waits for the answer and
returns it. A request names its driver by the number of its lease, so a leftover request never stops another driver's
run. Anybody who may write to the run's `.requests` directory may send requests.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from paceline._storage.lease import MAX_CLOCK_SKEW_S, LeaseHolder, is_holder_alive
from paceline._storage.mailbox import Mailbox
from paceline._storage.run_location import RunLocation

REQUEST_VERSION = 1
_POLL_S = 0.1
_POLL_STORE_S = 2.0
_HOLDER_POLL_S = 1.0
_RELEASE_TIMEOUT_S = 10.0

AnswerState = Literal[
    "done",  # for a stop: the run has ended
    "taken",  # the driver is working on it, and the timeout is over
    "refused",
    "undriven",  # the run has no driver
    "gone",  # the driver ended without answering
    "silent",  # the driver did not answer in time
]


class StopRequest(msgspec.Struct, frozen=True, tag="stop_request"):
    """Stop at the next report, with a checkpoint if the script makes one on stop; or stop now."""

    now: bool = False


class StacksRequest(msgspec.Struct, frozen=True, tag="stacks_request"):
    """Sample the stacks of these ranks; of all ranks if empty."""

    ranks: tuple[int, ...] = ()


class ProfileRequest(msgspec.Struct, frozen=True, tag="profile_request"):
    """Profile these ranks for some seconds. If empty: all ranks, or the first `MAX_PROFILED_RANKS`."""

    seconds: float = 10.0
    ranks: tuple[int, ...] = ()


UserRequest = StopRequest | StacksRequest | ProfileRequest

MAX_PROFILED_RANKS = 8
MAX_PROFILE_S = 600.0


class RequestEnvelope(msgspec.Struct, frozen=True):
    """A request as stored in the mailbox."""

    lease: int
    """The lease number of the driver it is for."""
    at: float
    request: UserRequest
    valid_s: float = 60.0
    """How long the sender waits."""
    version: int = REQUEST_VERSION


class StackLine(msgspec.Struct, frozen=True):
    """One call on a stack."""

    function: str
    where: str
    """For example `train.py:41`."""
    own: bool = False
    """Whether the file is the user's own."""


class Thread(msgspec.Struct, frozen=True):
    name: str
    lines: tuple[StackLine, ...]
    """Innermost last."""
    calls: str = ""
    """The non-Python function that the innermost line calls, such as `time.sleep`."""


class RankStacks(msgspec.Struct, frozen=True, kw_only=True):
    """Of a rank, or of a data process, whose rank is -1."""

    rank: int
    data_process: str = ""
    """As `data process 4466, map_batches(tokenize) of part-7.parquet`."""
    answers: bool
    """If False, the process is stopped, gone, or in C code that holds the GIL; see `condition`."""
    condition: str = ""
    """What the operating system knows about the process, in words."""
    threads: tuple[Thread, ...] = ()
    """The main thread, which runs the user's function, comes first."""

    @property
    def title(self) -> str:
        return self.data_process or f"rank {self.rank}"


class DiagnosticFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the run that was made for this request."""

    kind: str
    path: str
    """Relative to the run's directory."""
    rank: int
    """-1: all ranks."""
    at: float
    seconds: float = 0.0
    num_bytes: int = 0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    state: AnswerState
    text: str
    """For people: the outcome, and after a blank line a `hint:` with what to do."""
    ending: str | None = None
    """For a stop: how the run ended."""
    num_reports: int | None = None
    checkpoint: str | None = None
    """For a stop: the latest checkpoint of the run."""
    stacks: tuple[RankStacks, ...] = ()
    files: tuple[DiagnosticFile, ...] = ()
    problems: tuple[str, ...] = ()
    """What could not be collected from some ranks."""

    @property
    def ok(self) -> bool:
        return self.state == "done"


encode = msgspec.json.Encoder().encode
decode_request = msgspec.json.Decoder(RequestEnvelope).decode
decode_answer = msgspec.json.Decoder(Answer).decode


def send_request(
    location: RunLocation,
    request: UserRequest,
    timeout_s: float | None = None,
    *,
    on_accepted: Callable[[Answer], None] | None = None,
) -> Answer:
    """Send a request to the driver of a run or a search, and return its answer.

    Does not raise because of the state of the run or its driver: see `Answer.state`, and `Answer.text` in words.
    Storage errors are raised as usual. `timeout_s=None` waits as long as such a request usually takes. `on_accepted` is
    called once the driver has accepted a long request, with an answer in state `taken`.
    """
    holder = find_holder(location)
    if holder is None:
        return Answer(state="undriven", text=_undriven_text(location))
    mailbox, poll_s = _choose_mailbox(location, holder)
    wait_s = timeout_s if timeout_s is not None else _default_timeout_s(request) + (0.0 if poll_s == _POLL_S else 20.0)
    id = secrets.token_hex(8)
    try:
        mailbox.put(id, encode(RequestEnvelope(holder.number, time.time(), request, wait_s)))
    except FileNotFoundError:  # The driver has closed its mailbox meanwhile.
        return Answer(state="undriven", text=_undriven_text(location))
    try:
        return _wait_for_answer(location, holder, mailbox, id, request, wait_s, poll_s, on_accepted)
    finally:
        mailbox.withdraw(id)


def find_holder(location: RunLocation) -> LeaseHolder | None:
    """Who drives the run now, as far as visible from here; None if nobody does."""
    lease = location.open_lease_store().read()
    if lease is None or lease.holder.released:
        return None
    holder = lease.holder
    alive = is_holder_alive(holder)
    if alive is None and time.time() - holder.renewed_at > holder.ttl_s + MAX_CLOCK_SKEW_S:
        return None
    return None if alive is False else holder


def _choose_mailbox(location: RunLocation, holder: LeaseHolder) -> tuple[Mailbox, float]:
    """The mailbox that this driver reads, and the interval for polling its answer."""
    near, far = location.open_mailboxes()
    # The local spool of a run in a store is on the driver's machine, and may belong to another user.
    if far is None or (is_holder_alive(holder) and near.is_open()):
        return near, _POLL_S
    return far, _POLL_STORE_S


def _default_timeout_s(request: UserRequest) -> float:
    match request:
        case StopRequest(now=now):
            return 30.0 if now else 60.0
        case StacksRequest():
            return 15.0
        case ProfileRequest(seconds=seconds):
            return seconds + 60.0


def _wait_for_answer(
    location: RunLocation,
    holder: LeaseHolder,
    mailbox: Mailbox,
    id: str,
    request: UserRequest,
    wait_s: float,
    poll_s: float,
    on_accepted: Callable[[Answer], None] | None,
) -> Answer:
    accepted: Answer | None = None
    started_at = checked_at = time.monotonic()
    while True:
        # Check the holder before reading: a driver that is gone may have answered before it ended.
        now, is_gone = time.monotonic(), False
        if now - checked_at >= _HOLDER_POLL_S:
            checked_at = now
            current = find_holder(location)
            is_gone = current is None or current.number != holder.number
        data = mailbox.read_answer(id)
        answer = decode_answer(data) if data is not None else None
        if answer is not None and answer.state != "taken":
            if isinstance(request, StopRequest) and answer.ok:
                _wait_for_release(location, holder)
            return answer
        if answer is not None and accepted is None:
            accepted = answer
            if on_accepted is not None:
                on_accepted(answer)
        if is_gone:
            when = "before it answered" if accepted is None else "before it finished the request"
            text = f"the driver of {location.name}, process {holder.pid} on {holder.host}, ended {when}"
            return Answer(state="gone", text=text)
        if now - started_at >= wait_s:
            return accepted or Answer(state="silent", text=_no_answer_text(location, holder, wait_s))
        time.sleep(poll_s)


def _wait_for_release(location: RunLocation, holder: LeaseHolder) -> None:
    """Wait briefly for the driver to release the run, so that it can be resumed at once."""
    end = time.monotonic() + _RELEASE_TIMEOUT_S
    while time.monotonic() < end:
        current = find_holder(location)
        if current is None or current.number != holder.number:
            return
        time.sleep(_POLL_S)


def _undriven_text(location: RunLocation) -> str:
    return (
        f"{location.name} has no driver: it has ended, or its driver is lost\n\n"
        f"hint: `paceline show {location.uri}` shows its state; run its script again to resume it"
    )


def _no_answer_text(location: RunLocation, holder: LeaseHolder, wait_s: float) -> str:
    return (
        f"the driver of {location.name}, process {holder.pid} on {holder.host}, did not answer within {wait_s:g} s\n\n"
        "hint: it may be stuck in storage or stopped by a signal; the request is withdrawn. To resume the run from its "
        f"last checkpoint, kill the driver (kill {holder.pid} on {holder.host}) and run the script again"
    )
