"""One thread for storage work that may block: commits, verifications and deletions, in order of submission.

Each piece of work returns an event, which the controller handles together with the engine's events.
"""

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from paceline._control.events import Event

Work = Callable[[], Event | None]


class StorageThread:
    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._results: deque[Event | BaseException] = deque()
        self._thread = threading.Thread(target=self._run_work, name="paceline-storage", daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> None:
        self._queue.put(work)

    def take_events(self) -> list[Event]:
        """Return the events since the last call; raise the error of work that failed."""
        events = []
        while self._results:
            done = self._results.popleft()
            if isinstance(done, BaseException):
                raise done
            events.append(done)
        return events

    def close(self) -> None:
        """Finish the submitted work, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run_work(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                event: Event | BaseException | None = work()
            except BaseException as error:  # noqa: BLE001  raised again by `taken`, on the controller's thread
                event = error
            if event is not None:
                self._results.append(event)
                self._wake()
