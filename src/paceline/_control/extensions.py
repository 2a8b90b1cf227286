"""What a controller looks after beside its loop: here hangs, tasks, capacity and the description.

Each is an `Extension`, as are `RequestHandler`, `UsageCollector` and `ValidationRunner`. All methods are called in the
controller's thread. An extension that raises is dropped and training continues, unless it is essential.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from paceline._control import commands, events
from paceline._control.events import Event
from paceline._control.hang_detector import HangDetector, HangReport, SampleRequest
from paceline._control.worker_sync import TaskQueue
from paceline._engine import messages
from paceline._engine.base import DataInspector, WorkerResources

if TYPE_CHECKING:
    from paceline._control.controller import Controller

log = logging.getLogger("paceline")

CAPACITY_POLL_S = 1.0
DESCRIPTION_TIMEOUT_S = 2.0
"""How long a run that ends at once waits for its description."""


class Interrupts(Protocol):
    """A context manager that forwards stop requests to a controller while it is driving."""

    count: int
    """1: stop at the next report; 2 or more: stop now."""
    has_ctrl_c: bool
    """Whether any of them was Ctrl-C."""

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
    def on_stop_request(self, *, now: bool) -> None:
        """Called in the controller's thread when a request to the run asks for a stop."""
        ...


class Extension:
    is_essential: ClassVar[bool] = False
    """Whether the run fails if the extension raises."""
    control: Controller

    def attach(self, control: Controller) -> None:
        self.control = control

    def on_attempt_started(self, size: int) -> None:
        """Workers are about to start."""

    def on_message(self, message: Any) -> bool:
        """Called for all messages of workers except reports. Return whether it is done with: the first one that says so
        gets it alone. `control.add_event` puts an event before the message."""
        return False

    def on_event(self, event: Event, now: float) -> None:
        """Called when an event took effect, before its commands are executed."""

    def execute(self, command: commands.Command) -> bool:
        """Execute a command that is not the controller's own; return whether it did."""
        return False

    def poll(self) -> Sequence[Event]:
        """Called in every turn of the loop. Return events to apply."""
        return ()

    def on_run_ended(self) -> None:
        """Called when the run is finished, while the storage thread still works."""

    def on_storage_closed(self) -> None:
        """Called when nothing runs any more: the last chance to record something."""

    def close(self, error: BaseException | None = None) -> None:
        """Called as the driver exits; `error` is the exception it exits with."""


class HangWatch(Extension):
    def __init__(
        self,
        timeout_s: float | None,
        action: events.HangAction,
        storage: str,
        data_inspector: DataInspector | None = None,
    ) -> None:
        self._data_inspector = data_inspector
        self.detector = HangDetector(timeout_s, action, storage)

    def on_attempt_started(self, size: int) -> None:
        self.detector.start_attempt(size, self.control.clock.now())

    def on_message(self, message: Any) -> bool:
        now = self.control.clock.now()
        if isinstance(message, messages.Joined) and message.attempt == self.control.run.attempt:
            self.detector.on_barrier_joined(message, now)
        if not isinstance(message, messages.StacksSampled):
            return False
        if message.attempt == self.control.run.attempt:
            self.detector.add_sample(message, now)
        return True

    def on_event(self, event: Event, now: float) -> None:
        self.detector.on_event(event, now)

    def poll(self) -> Sequence[Event]:
        """Request stack samples or report a hang, when due."""
        control, now = self.control, self.control.clock.now()
        if control.engine.waits:
            self.detector.start_attempt(control.run.size, now)
            return ()
        match self.detector.tick(control.run, now, control.clock.wall()):
            case SampleRequest(number=number, unanswered=unanswered):
                for rank in unanswered:
                    self.detector.add_missing_sample(rank, control.engine.condition(rank), now)
                control.broadcast(messages.SampleStacks(number))
                if self._data_inspector is not None:
                    self.detector.add_data_samples(self._data_inspector.read_samples(), now)
                    self._data_inspector.request_samples()
            case HangReport(event=event, stacks=stacks):
                if stacks:
                    control.write_stacks(stacks)
                return [event]
        return ()


class TaskDispatch(Extension):
    """Sends the tasks of persistent workers, which stay idle between them."""

    is_essential = True

    def __init__(self, queue: TaskQueue, hang_watch: HangWatch | None = None) -> None:
        self._queue = queue
        self._hang_watch = hang_watch

    def on_message(self, message: Any) -> bool:
        if not isinstance(message, messages.TaskAnswered):
            return False
        if self._queue.add_answer(message, self.control.run):
            self.control.barriers.mark_returned(message.rank)
            self._mark_idle(message.rank)
        return True

    def on_event(self, event: Event, now: float) -> None:
        if isinstance(event, events.WorkerReady):
            self._mark_idle(event.rank)

    def poll(self) -> Sequence[Event]:
        control = self.control
        task = self._queue.take_due(control.run)
        if task is not None:
            control.barriers.clear_returned()
            if self._hang_watch is not None:
                self._hang_watch.detector.mark_all_busy(control.clock.now())
            control.broadcast(task)
        mismatch = self._queue.find_mismatch(control.run, control.clock.wall())
        return [events.WorkerFailed(control.run.attempt, mismatch.rank, mismatch)] if mismatch is not None else ()

    def _mark_idle(self, rank: int) -> None:
        if self._hang_watch is not None:
            self._hang_watch.detector.mark_idle(rank, self.control.clock.now())


class CapacityWatch(Extension):
    """Polls the engine's capacity for elastic runs, and when workers are gone: it decides how many start next."""

    is_essential = True

    def __init__(self, resources: WorkerResources) -> None:
        self._resources = resources
        self._checked_at = float("-inf")

    def attach(self, control: Controller) -> None:
        super().attach(control)
        self._checked_at = control.clock.now()

    def on_message(self, message: Any) -> bool:
        if isinstance(message, events.WorkersStopped):
            for event in self._check():
                self.control.add_event(event)
        return False

    def on_event(self, event: Event, now: float) -> None:
        # A run may grow at every commit if it says so: do not let short steps outrun the polling.
        if isinstance(event, events.Committed) and self.control.run.resize_every_s < CAPACITY_POLL_S:
            self._checked_at = float("-inf")

    def poll(self) -> Sequence[Event]:
        return self._check() if self.control.clock.now() - self._checked_at >= CAPACITY_POLL_S else ()

    def _check(self) -> Sequence[Event]:
        run = self.control.run
        if len(run.sizes) < 2:
            return ()
        self._checked_at = self.control.clock.now()
        num_places = self.control.engine.capacity(self._resources, run.sizes[0], run.sizes[-1])
        return [events.CapacityChanged(run.attempt, num_places)] if num_places != run.num_places else ()


class DescriptionRecorder(Extension):
    """Writes the description of the run to the journal once it is computed, in the background."""

    def __init__(self, description: Future[events.RunDescribed | None]) -> None:
        self._description: Future[events.RunDescribed | None] | None = description

    def poll(self) -> Sequence[Event]:
        if self._description is not None and self._description.done():
            self._record(0.0)
        return ()

    def on_storage_closed(self) -> None:
        self._record(DESCRIPTION_TIMEOUT_S)

    def _record(self, timeout_s: float) -> None:
        future, self._description = self._description, None
        if future is None:
            return
        try:
            described = future.result(timeout_s)
        except TimeoutError:
            return
        if described is not None:
            self.control.record_note(described)
