"""The driver's side of requests: taken out of the mailboxes, judged, answered.

Looking costs a listing of an empty directory twice a second, and of a store one call in ten seconds, on the storage
thread. Whatever lies there, and whatever goes wrong with it, the run goes on: a request that cannot be read, is meant
for another driver, or is older than anybody would wait is answered with that and removed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

import msgspec

from paceline._control.requests import Answer, Request, Want, decode_request, encode
from paceline._core.clock import Clock
from paceline._storage.lease import SKEW_S
from paceline._storage.mailbox import Mailbox

log = logging.getLogger("paceline")

LOOK_EVERY_S = 0.5
LOOK_FAR_EVERY_S = 10.0

Submit = Callable[[Callable[[], None]], None]
"""Has something done on the storage thread."""

Letter = tuple[str, bytes | None]


class Reception:
    def __init__(self, near: Mailbox, far: Mailbox | None, lease: int, clock: Clock) -> None:
        self._near = near
        self._far = far
        self._lease = lease
        self._clock = clock
        self._looked_at = float("-inf")
        self._looked_far_at = clock.now()
        self._looks_far = False
        self._from_far: deque[Letter] = deque()
        self._far_ids: set[str] = set()
        """Of those that came through the store, and are to be answered there."""
        self._known: set[str] = set()
        """Those that were taken: one that could not be removed is not taken again."""
        self._failing = False
        self._submit: Submit | None = None
        self._open: set[int] = set()

    def due(self, submit: Submit) -> list[tuple[str, Want]]:
        """The requests that have come, each with the id to answer it by. To be called often."""
        self._submit = submit
        now = self._clock.now()
        letters: list[Letter] = []
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            letters += self._collected(self._near)
        if self._far is not None and now - self._looked_far_at >= LOOK_FAR_EVERY_S and not self._looks_far:
            self._looked_far_at, self._looks_far = now, True
            submit(self._look_far)
        while self._from_far:
            letter = self._from_far.popleft()
            self._far_ids.add(letter[0])
            letters.append(letter)
        return [(id, want) for id, data in letters if (want := self._judged(id, data)) is not None]

    def answer(self, id: str, answer: Answer) -> None:
        """May be called again for a request whose answer so far was that it is taken."""
        data = encode(answer)
        if id not in self._far_ids:
            self._tried(lambda: self._near.answer(id, data))
        elif self._submit is not None:
            far = self._far
            assert far is not None
            self._submit(lambda: self._tried(lambda: far.answer(id, data)))

    def leave_thread(self) -> None:
        """The storage thread has ended: what is to be done from here on is done at once."""
        self._submit = lambda work: work()

    def close(self, last: Callable[[Want], Answer]) -> None:
        """Answer what has come in at the last moment, and be gone."""
        if not self._open:
            return
        self._looked_at = float("-inf")
        self._looked_far_at = self._clock.now()  # Who asks through the store sees that the run has no driver.
        for name, want in self.due(self._submit or (lambda work: work())):
            self.answer(name, last(want))
        self._tried(self._near.close)

    def _collected(self, box: Mailbox) -> list[Letter]:
        names: list[str] = []

        def look() -> None:
            if id(box) not in self._open:
                box.open()
                self._open.add(id(box))
            names.extend(box.waiting())

        self._tried(look)
        found: list[Letter] = []
        for name in names:
            if name not in self._known:
                self._tried(partial(self._take_out, box, name, found))
        return found

    def _take_out(self, box: Mailbox, name: str, found: list[Letter]) -> None:
        data = box.read(name)
        if data is not None and self._is_for_a_later_driver(data):
            return  # This driver was paused, and will soon know that it is not asked any more.
        self._known.add(name)
        found.append((name, data))
        box.remove(name)

    def _look_far(self) -> None:
        """On the storage thread."""
        assert self._far is not None
        self._from_far.extend(self._collected(self._far))
        self._looks_far = False

    def _is_for_a_later_driver(self, data: bytes) -> bool:
        try:
            return decode_request(data).lease > self._lease
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return False

    def _judged(self, id: str, data: bytes | None) -> Want | None:
        problem = ""
        try:
            if data is None:
                raise ValueError("it is no plain file, or too large")
            request = decode_request(data)
            problem = self._problem_with(request)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            problem = f"the request cannot be read: {error}"
        if problem:
            self.answer(id, Answer(state="refused", text=problem))
            return None
        return request.want

    def _problem_with(self, request: Request) -> str:
        if request.lease != self._lease:
            return (
                f"the request is meant for driver number {request.lease} of the run, and this is number {self._lease}"
            )
        age_s = self._clock.wall() - request.at
        if age_s > request.valid_s + SKEW_S:
            return f"the request is {age_s:.0f} s old, and was to be answered within {request.valid_s:.0f} s"
        return ""

    def _tried(self, act: Callable[[], None]) -> None:
        try:
            act()
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning("requests to this run cannot be read or answered, tried again: %s", error)
            self._failing = True
