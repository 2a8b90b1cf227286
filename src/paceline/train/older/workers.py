"""A run whose workers stay between orders, driven in a thread of its own.

The script's thread gives orders and waits for the answers; signals are heard only while it waits, in the main thread.
"""

from __future__ import annotations

import atexit
import contextlib
import pickle
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from paceline._control.controller import Controller
from paceline._control.events import Event, Reported, Retention
from paceline._control.orders import Orders
from paceline._control.run import Run, Running
from paceline._engine.messages import Answered
from paceline.train.drive import Asked, Seams, SignalInterrupts, played
from paceline.train.older.callbacks import RunCallbacks
from paceline.train.result import Result
from paceline.train.terminal import Terminal

_END_S = 30.0
"""How long workers may take to leave their framework before they are ended."""


class Workers:
    """Those of one run, from `start()` to `shutdown()`. An observer of the run that it drives."""

    def __init__(self, asked: Asked, terminal: StandingTerminal, seams: Seams) -> None:
        self.count = 0
        self.run: Run | None = None
        self.num_reports = 0
        """Of the rank that has made most."""
        self.num_given = 0
        self._terminal = terminal
        self._orders = Orders()
        self._controller: Controller | None = None
        self._changed = threading.Condition()  # protects all below
        self._answers: tuple[Answered, ...] | None = None
        self._busy = False
        """The workers are at an order."""
        self._waited_for = False
        self._outcome: Result | BaseException | None = None
        self._is_told = False
        self._attempt = 0
        self._reports: dict[int, dict[int, Reported]] = {}
        self._rows: deque[tuple[Reported, ...]] | None = None
        self._told: RunCallbacks | None = None
        seams = replace(
            seams,
            orders=self._orders,
            watchers=(*seams.watchers, lambda stop: self),
            interrupts=self._meets,
        )
        self._thread = threading.Thread(
            target=self._drive, args=(asked, seams), name="paceline-standing-workers", daemon=True
        )
        self._thread.start()
        # Later than what the engine registered for the script's end, so before it: workers leave in good order.
        atexit.register(self.close)

    @property
    def alive(self) -> bool:
        return self._outcome is None

    def wait_until_ready(self) -> None:
        """Raises what kept them from it."""
        with self._heard(), self._changed:
            self._changed.wait_for(lambda: self._is_ready() or self._outcome is not None)
        self._raise_outcome()

    def done(self, job: bytes, retention: Retention | None = None, told: RunCallbacks | None = None) -> list[Any]:
        """Have an order done, and return what each rank's function returned."""
        assert self.run is not None
        with told.during(self.run) if told is not None else contextlib.nullcontext():
            self._told = told
            try:
                for _ in self.doing(job, retention, rows=False):
                    pass
            finally:
                self._told = None
        return self.values()

    def doing(self, job: bytes, retention: Retention | None = None, *, rows: bool = True) -> Iterator[list[Reported]]:
        """The same, report by report: each once all ranks have made it."""
        with self._changed:
            if self._waited_for:
                raise RuntimeError("a run is under way: wait for it, or iterate to its end, before the next")
            self._answers = None
            self._rows = deque() if rows else None
            self._reports.clear()
        self._raise_outcome()
        assert self._controller is not None
        self._busy = self._waited_for = True
        self.num_given += 1
        try:
            with self._heard():
                self._controller.give(job, retention)
                while (row := self._next_row()) is not None:
                    yield list(row)
            self._raise_outcome()
        finally:
            self._rows = None
            self._waited_for = False
            self._busy = self._answers is None

    def values(self) -> list[Any]:
        """What the functions of the last order returned, by rank."""
        answers = self._answers
        assert answers is not None
        return [pickle.loads(each.value) for each in answers]  # noqa: S301  from our workers' memory, not storage

    def raise_untold(self) -> None:
        """Raise what ended the workers between two runs, or at their end, if nobody was told of it yet."""
        if self._outcome is None:
            return
        self._thread.join()
        atexit.unregister(self.close)
        was_told, self._is_told = self._is_told, True
        if isinstance(self._outcome, BaseException) and not was_told:
            raise self._outcome

    def close(self) -> None:
        """Let the workers go, and wait until they are gone. Those that are still at an order are ended."""
        atexit.unregister(self.close)
        self._terminal.is_ending = True
        with self._changed:
            self._changed.wait_for(lambda: self._controller is not None or self._outcome is not None)
            at_rest = self._is_ready() and not self._busy
        if self.alive and self._controller is not None:
            if at_rest:
                self._controller.give(b"")
            else:
                self._controller.request_stop(now=True)
        if threading.current_thread() is self._thread:
            return  # What is garbage is collected in any thread; this one ends by itself now.
        self._thread.join(_END_S)
        if self._thread.is_alive() and self._controller is not None:
            self._controller.request_stop(now=True)
        self._thread.join()

    # These run in the driving thread.

    def saw(self, event: Event, run: Run) -> None:
        with self._changed:
            self.run = run
            if run.attempt != self._attempt:
                self._attempt = run.attempt
                self._reports.clear()
            if isinstance(event, Reported):
                self.num_reports = max(self.num_reports, event.seq)
                if self._rows is not None:
                    self._collect(event, run.size)
            self._changed.notify_all()
        told = self._told
        if told is not None:
            told.saw(event, run)

    def tick(self, run: Run, now: float) -> None:
        # Here, not when the last rank answers: by now the terminal has shown what it printed before.
        answers = self._orders.taken(run)
        if answers is not None:
            with self._changed:
                self._answers = answers
                self.num_reports = max(self.num_reports, *(each.num_reports for each in answers))
                self._changed.notify_all()

    def _collect(self, event: Reported, size: int) -> None:
        made = self._reports.setdefault(event.seq, {})
        made[event.rank] = event
        if len(made) == size:
            assert self._rows is not None
            self._rows.append(tuple(made[rank] for rank in range(size)))
            del self._reports[event.seq]

    def _drive(self, asked: Asked, seams: Seams) -> None:
        outcome: Result | BaseException
        try:
            outcome = played(asked, self._terminal, seams)
        except BaseException as error:  # noqa: BLE001  raised again in the caller's thread
            outcome = error
        with self._changed:
            self._outcome = outcome
            self._changed.notify_all()

    def _meets(self, controller: Controller) -> Workers:
        """Called by the driving thread with what it drives: this object stands in for signals."""
        with self._changed:
            self._controller = controller
            self._changed.notify_all()
        return self

    def __enter__(self) -> None:
        """Nothing is taken over from the driving thread."""

    def __exit__(self, *_: object) -> None:
        """See `__enter__`."""

    def asked(self, *, now: bool) -> None:
        assert self._controller is not None
        self.count = max(self.count, 2 if now else 1)
        self._controller.request_stop(now=now)

    # These run in the caller's.

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        """Pass Ctrl-C and notices on while the caller waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._controller is not None or self._outcome is not None)
        if self._controller is None:
            yield
            return
        signals = SignalInterrupts(self._controller)
        try:
            with signals:
                yield
        finally:
            self.count = max(self.count, signals.count)

    def _is_ready(self) -> bool:
        phase = self.run.phase if self.run is not None else None
        return self.run is not None and isinstance(phase, Running) and phase.num_ready >= self.run.size

    def _next_row(self) -> tuple[Reported, ...] | None:
        """None once all ranks have answered, or the run has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._rows or self._answers is not None or self._outcome is not None)
            return self._rows.popleft() if self._rows else None

    def _raise_outcome(self) -> None:
        if self._outcome is None or self._answers is not None:
            return
        self.raise_untold()
        if self.count:
            raise KeyboardInterrupt
        if not self.num_given:
            raise RuntimeError(
                "no workers were started: the run of this trainer is complete\n\n"
                "hint: RunConfig(name=...) with another name, or a trainer of its own, for workers that stay"
            )
        raise RuntimeError("the workers were ended while they ran a function\n\nhint: start() others")


class StandingTerminal(Terminal):
    """Does not tell how to continue a run that the script itself has ended."""

    is_ending = False

    def say(self, text: str, *, error: bool = False) -> None:
        if error or not self.is_ending:
            super().say(text, error=error)
