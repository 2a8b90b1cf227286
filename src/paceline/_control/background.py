"""One thread for what may block: commits, checks and deletions, in the order they were asked for.

Each piece of work answers with an event, which the controller takes up with those of the engine.
"""

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from paceline._control.events import Event

Work = Callable[[], Event | None]


class Background:
    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._done: deque[Event | BaseException] = deque()
        self._thread = threading.Thread(target=self._run, name="paceline-storage", daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> None:
        self._work.put(work)

    def taken(self) -> list[Event]:
        """The events that have come since the last call; work that broke raises here."""
        events = []
        while self._done:
            done = self._done.popleft()
            if isinstance(done, BaseException):
                raise done
            events.append(done)
        return events

    def close(self) -> None:
        """Finish what was asked for, then end the thread."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                event: Event | BaseException | None = work()
            except BaseException as error:  # noqa: BLE001  raised again by `taken`, on the controller's thread
                event = error
            if event is not None:
                self._done.append(event)
                self._wake()
