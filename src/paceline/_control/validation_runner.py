"""Runs validations of checkpoints, one at a time, each as a separate worker on an engine next to the training's.

`step` chooses the next one. This module starts it, retries it if configured, ends it at its timeout, and returns its
end as an event. The controller polls it in every iteration of its loop; nothing here blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from paceline._control import events
from paceline._control.commands import Command, StartValidation
from paceline._control.events import CheckpointRecord, ValidationEnded
from paceline._control.extensions import Extension
from paceline._core.checkpoint_records import CheckpointStatus
from paceline._core.system import Clock
from paceline._engine.base import Engine, WorkerGroupSpec
from paceline._engine.messages import WorkersStopped

START_TIMEOUT_S = 60.0
"""How long the process may take to reach the function; the timeout of a validation counts from there."""
EXIT_TIMEOUT_S = 10.0
"""How long the process may take to exit once its function has returned."""


@dataclass(frozen=True)
class ValidationSetup:
    """How checkpoints are validated."""

    engine: Callable[[], Engine]
    group: Callable[[CheckpointRecord, int], WorkerGroupSpec]
    """The worker that validates a checkpoint; the number distinguishes the groups of one engine."""
    timeout_s: Callable[[CheckpointRecord], float | None]
    max_retries: int
    """How often a failed validation is retried; -1: no limit."""
    is_retried: Callable[[events.WorkerFailed], bool]


@dataclass
class _ActiveValidation:
    record: CheckpointRecord
    timeout_s: float | None
    deadline: float | None
    is_ready: bool = False
    num_tries: int = 1
    outcome: ValidationEnded | None = None
    """Known once the worker has answered; returned once its process is gone."""
    should_retry: bool = False
    exit_deadline: float | None = None


class ValidationRunner(Extension):
    is_essential = True

    def __init__(self, setup: ValidationSetup, clock: Clock) -> None:
        self._setup = setup
        self._clock = clock
        self._engine: Engine | None = None
        self._number = 0
        self._active: _ActiveValidation | None = None
        self._ended: list[ValidationEnded] = []

    def execute(self, command: Command) -> bool:
        if not isinstance(command, StartValidation):
            return False
        assert self._active is None, "one validation at a time"
        timeout_s = self._setup.timeout_s(command.record)
        due = None if timeout_s is None else self._clock.now() + START_TIMEOUT_S + timeout_s
        self._active = _ActiveValidation(command.record, timeout_s, due)
        self._launch(self._active)
        return True

    def poll(self) -> list[ValidationEnded]:
        """Return the validations that ended since the last call."""
        if self._active is not None:
            self._poll_worker(self._active)
        ended, self._ended = self._ended, []
        return ended

    def close(self, error: BaseException | None = None) -> None:
        """Kill a running validation without an event: it stays pending."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _launch(self, active: _ActiveValidation) -> None:
        if self._engine is None:
            self._engine = self._setup.engine()
        self._number += 1
        active.outcome, active.should_retry, active.exit_deadline = None, False, None
        try:
            self._engine.start(self._setup.group(active.record, self._number))
        except OSError as problem:
            # A validation must not fail the training.
            self._active = None
            self._ended.append(_make_ended(active.record, "VALIDATION_FAILED", problem=f"cannot start: {problem}"))

    def _poll_worker(self, active: _ActiveValidation) -> None:
        assert self._engine is not None
        has_exited = False
        for message in self._engine.wait(0.0):
            match message:
                case events.WorkerReady() if active.timeout_s is not None and not active.is_ready:
                    active.is_ready, active.deadline = True, self._clock.now() + active.timeout_s
                case events.WorkerReturned() if active.outcome is None:
                    self._set_outcome(
                        active, replace(_make_ended(active.record, "VALIDATED"), metrics=message.value), kill=False
                    )
                case events.WorkerFailed(failure=failure) if active.outcome is None:
                    limit = self._setup.max_retries
                    active.should_retry = (limit < 0 or active.num_tries <= limit) and self._setup.is_retried(message)
                    problem = failure.message + (f", at {failure.frames[-1]}" if failure.frames else "")
                    self._set_outcome(
                        active, _make_ended(active.record, "VALIDATION_FAILED", problem=problem), kill=True
                    )
                case WorkersStopped():
                    has_exited = True
        now = self._clock.now()
        if active.outcome is None and active.deadline is not None and now >= active.deadline:
            problem = f"stopped after its timeout of {active.timeout_s:g} s"
            self._set_outcome(active, _make_ended(active.record, "VALIDATION_TIMEOUT", problem=problem), kill=True)
        elif active.exit_deadline is not None and now >= active.exit_deadline:
            active.exit_deadline = None
            self._engine.stop(kill=True)
        if has_exited and active.outcome is not None:
            self._on_process_exit(active, active.outcome, now)

    def _set_outcome(self, active: _ActiveValidation, end: ValidationEnded, *, kill: bool) -> None:
        assert self._engine is not None
        active.outcome = end
        active.exit_deadline = self._clock.now() + EXIT_TIMEOUT_S
        self._engine.stop(kill=kill)

    def _on_process_exit(self, active: _ActiveValidation, end: ValidationEnded, now: float) -> None:
        if active.should_retry and (active.deadline is None or now < active.deadline):
            active.num_tries += 1
            self._launch(active)
            return
        self._active = None
        self._ended.append(end)


def _make_ended(record: CheckpointRecord, status: CheckpointStatus, problem: str = "") -> ValidationEnded:
    return ValidationEnded(record.attempt, record.seq, record.name, status, problem=problem)
