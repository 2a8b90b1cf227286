"""The driver's side of requests: reads them from the mailboxes, checks and answers them.

This costs a listing of an empty directory twice a second, and for a store one call every ten seconds on the storage
thread. Nothing in a mailbox, and no error with it, affects the run: a request that is unreadable, for another driver,
or older than its timeout is refused and removed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from paceline._control.requests import Answer, RequestEnvelope, UserRequest, decode_request, encode
from paceline._core.system import Clock
from paceline._storage.lease import MAX_CLOCK_SKEW_S
from paceline._storage.mailbox import Mailbox

log = logging.getLogger("paceline")

LOOK_EVERY_S = 0.5
LOOK_FAR_EVERY_S = 10.0

Submit = Callable[[Callable[[], None]], None]
"""Runs a function on the storage thread."""

RawRequest = tuple[str, bytes | None]


class RequestInbox:
    def __init__(self, near: Mailbox, far: Mailbox | None, lease: int, clock: Clock) -> None:
        self._near = near
        self._far = far
        self._lease = lease
        self._clock = clock
        self._looked_at = float("-inf")
        self._looked_far_at = clock.now()
        self._is_collecting_far = False
        self._from_far: deque[RawRequest] = deque()
        self._far_ids: set[str] = set()
        """Requests that came through the store and are answered there."""
        self._taken_ids: set[str] = set()
        """Requests already taken: one that could not be removed is not taken again."""
        self._failing = False
        self._submit: Submit | None = None
        self._open_mailboxes: set[int] = set()

    def take_due(self, submit: Submit) -> list[tuple[str, UserRequest]]:
        """Return the new requests, each with the id to answer it by. Call this often."""
        self._submit = submit
        now = self._clock.now()
        messages: list[RawRequest] = []
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            messages += self._collect(self._near)
        if self._far is not None and now - self._looked_far_at >= LOOK_FAR_EVERY_S and not self._is_collecting_far:
            self._looked_far_at, self._is_collecting_far = now, True
            submit(self._collect_far)
        while self._from_far:
            message = self._from_far.popleft()
            self._far_ids.add(message[0])
            messages.append(message)
        return [(id, request) for id, data in messages if (request := self._check_request(id, data)) is not None]

    def answer(self, id: str, answer: Answer) -> None:
        """Answer a request. May be called again if the answer so far was `taken`."""
        data = encode(answer)
        if id not in self._far_ids:
            self._try_storage(lambda: self._near.write_answer(id, data))
        elif self._submit is not None:
            far = self._far
            assert far is not None
            self._submit(lambda: self._try_storage(lambda: far.write_answer(id, data)))

    def work_inline(self) -> None:
        """Do the remaining work on the caller's thread: the storage thread has ended."""
        self._submit = lambda work: work()

    def close(self, last: Callable[[UserRequest], Answer]) -> None:
        """Answer the last requests and close the mailbox."""
        if not self._open_mailboxes:
            return
        self._looked_at = float("-inf")
        self._looked_far_at = self._clock.now()  # Senders that use the store see that the run has no driver.
        for name, request in self.take_due(self._submit or (lambda work: work())):
            self.answer(name, last(request))
        self._try_storage(self._near.close)

    def _collect(self, mailbox: Mailbox) -> list[RawRequest]:
        names: list[str] = []

        def list_waiting() -> None:
            if id(mailbox) not in self._open_mailboxes:
                mailbox.open()
                self._open_mailboxes.add(id(mailbox))
            names.extend(mailbox.list_waiting())

        self._try_storage(list_waiting)
        requests: list[RawRequest] = []
        for name in names:
            if name not in self._taken_ids:
                self._try_storage(partial(self._take_request, mailbox, name, requests))
        return requests

    def _take_request(self, mailbox: Mailbox, name: str, requests: list[RawRequest]) -> None:
        data = mailbox.read(name)
        if data is not None and self._is_for_a_later_driver(data):
            return  # This driver was paused, and will soon learn that it has lost the run.
        self._taken_ids.add(name)
        requests.append((name, data))
        mailbox.remove(name)

    def _collect_far(self) -> None:
        """Runs on the storage thread."""
        assert self._far is not None
        self._from_far.extend(self._collect(self._far))
        self._is_collecting_far = False

    def _is_for_a_later_driver(self, data: bytes) -> bool:
        try:
            return decode_request(data).lease > self._lease
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return False

    def _check_request(self, id: str, data: bytes | None) -> UserRequest | None:
        problem = ""
        try:
            if data is None:
                raise ValueError("not a plain file, or too large")
            request = decode_request(data)
            problem = self._find_problem(request)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            problem = f"cannot read the request: {error}"
        if problem:
            self.answer(id, Answer(state="refused", text=problem))
            return None
        return request.request

    def _find_problem(self, request: RequestEnvelope) -> str:
        if request.lease != self._lease:
            return f"the request is for driver {request.lease} of the run, but driver {self._lease} is running"
        age_s = self._clock.wall() - request.at
        if age_s > request.valid_s + MAX_CLOCK_SKEW_S:
            return f"the request expired: it is {age_s:.0f} s old and was valid for {request.valid_s:.0f} s"
        return ""

    def _try_storage(self, act: Callable[[], None]) -> None:
        try:
            act()
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning("cannot read or answer requests to this run; retrying: %s", error)
            self._failing = True
