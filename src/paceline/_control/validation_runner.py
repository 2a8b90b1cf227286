"""Runs validations of checkpoints, one at a time, each as a separate worker on an engine next to the training's.

`step` chooses the next one. This module starts it, retries it if configured, ends it at its timeout, and returns its
end as an event. The controller polls it in every iteration of its loop; nothing here blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from paceline._control.commands import StartValidation
from paceline._control.events import (
    CheckpointRecord,
    ValidationEnded,
    WorkerFailed,
    WorkerFailure,
    WorkerReady,
    WorkerReturned,
)
from paceline._core.clock import Clock
from paceline._engine.base import Engine, WorkerGroupSpec
from paceline._engine.messages import CheckpointStatus, WorkersStopped

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
    is_retried: Callable[[WorkerFailed], bool]
    """Whether this kind of failure is retried."""


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


class ValidationRunner:
    def __init__(self, validator: ValidationSetup, clock: Clock) -> None:
        self._validator = validator
        self._clock = clock
        self._engine: Engine | None = None
        self._number = 0
        self._active: _ActiveValidation | None = None
        self._ended: list[ValidationEnded] = []

    def start(self, command: StartValidation) -> None:
        assert self._active is None, "one validation at a time"
        timeout_s = self._validator.timeout_s(command.record)
        due = None if timeout_s is None else self._clock.now() + START_TIMEOUT_S + timeout_s
        self._active = _ActiveValidation(command.record, timeout_s, due)
        self._launch(self._active)

    def take_ended(self) -> list[ValidationEnded]:
        """Return the validations that ended since the last call."""
        if self._active is not None:
            self._poll(self._active)
        told, self._ended = self._ended, []
        return told

    def close(self) -> None:
        """Kill a running validation without an event: it stays pending."""
        if self._engine is not None:
            self._engine.close()

    def _launch(self, underway: _ActiveValidation) -> None:
        if self._engine is None:
            self._engine = self._validator.engine()
        self._number += 1
        underway.outcome, underway.should_retry, underway.exit_deadline = None, False, None
        try:
            self._engine.start(self._validator.group(underway.record, self._number))
        except OSError as problem:
            # A validation must not fail the training.
            self._active = None
            self._ended.append(
                _make_ended(underway.record, "VALIDATION_FAILED", problem=f"it could not start: {problem}")
            )

    def _poll(self, underway: _ActiveValidation) -> None:
        assert self._engine is not None
        gone = False
        for message in self._engine.wait(0.0):
            match message:
                case WorkerReady() if underway.timeout_s is not None and not underway.is_ready:
                    underway.is_ready, underway.deadline = True, self._clock.now() + underway.timeout_s
                case WorkerReturned() if underway.outcome is None:
                    self._set_outcome(
                        underway, replace(_make_ended(underway.record, "VALIDATED"), metrics=message.value), kill=False
                    )
                case WorkerFailed(failure=failure) if underway.outcome is None:
                    underway.should_retry = self._should_retry(underway, message)
                    problem = _format_failure(failure)
                    self._set_outcome(
                        underway, _make_ended(underway.record, "VALIDATION_FAILED", problem=problem), kill=True
                    )
                case WorkersStopped():
                    gone = True
        now = self._clock.now()
        if underway.outcome is None and underway.deadline is not None and now >= underway.deadline:
            problem = f"it took longer than {underway.timeout_s:g} s and was ended"
            self._set_outcome(underway, _make_ended(underway.record, "VALIDATION_TIMEOUT", problem=problem), kill=True)
        elif underway.exit_deadline is not None and now >= underway.exit_deadline:
            underway.exit_deadline = None
            self._engine.stop(kill=True)
        if gone and underway.outcome is not None:
            self._on_process_exit(underway, underway.outcome, now)

    def _set_outcome(self, underway: _ActiveValidation, end: ValidationEnded, *, kill: bool) -> None:
        assert self._engine is not None
        underway.outcome = end
        underway.exit_deadline = self._clock.now() + EXIT_TIMEOUT_S
        self._engine.stop(kill=kill)

    def _on_process_exit(self, underway: _ActiveValidation, end: ValidationEnded, now: float) -> None:
        if underway.should_retry and (underway.deadline is None or now < underway.deadline):
            underway.num_tries += 1
            self._launch(underway)
            return
        self._active = None
        self._ended.append(end)

    def _should_retry(self, underway: _ActiveValidation, failed: WorkerFailed) -> bool:
        limit = self._validator.max_retries
        return (limit < 0 or underway.num_tries <= limit) and self._validator.is_retried(failed)


def _make_ended(record: CheckpointRecord, status: CheckpointStatus, problem: str = "") -> ValidationEnded:
    return ValidationEnded(record.attempt, record.seq, record.name, status, problem=problem)


def _format_failure(failure: WorkerFailure) -> str:
    at = f", at {failure.frames[-1]}" if failure.frames else ""
    return f"{failure.message}{at}"
