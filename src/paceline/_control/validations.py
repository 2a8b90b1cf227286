"""Validations of checkpoints, one at a time, each as a worker of its own on an engine beside the training's.

`step` says which is next. Here one is started, tried again where that was asked for, ended when its time is over, and
its end told as an event. The controller looks in at every turn of its loop; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from paceline._control.commands import StartValidation
from paceline._control.events import (
    CheckpointRecord,
    Failure,
    ValidationEnded,
    WorkerFailed,
    WorkerReady,
    WorkerReturned,
)
from paceline._core.clock import Clock
from paceline._engine.base import Engine, Group
from paceline._engine.messages import CheckpointStatus, WorkersStopped

START_S = 60.0
"""How long the process may take to get to the function; the time of a validation counts from there."""
LEAVE_S = 10.0
"""How long the process may take to leave once its function has returned."""


@dataclass(frozen=True)
class Validator:
    """How checkpoints are validated."""

    engine: Callable[[], Engine]
    group: Callable[[CheckpointRecord, int], Group]
    """The one worker that validates a checkpoint; the number tells apart those of one engine."""
    timeout_s: Callable[[CheckpointRecord], float | None]
    max_retries: int
    """How often a validation that failed is made again; -1: without limit."""
    is_retried: Callable[[WorkerFailed], bool]
    """Whether this failure is one of those that are."""


@dataclass
class _Underway:
    record: CheckpointRecord
    timeout_s: float | None
    due: float | None
    ready: bool = False
    num_tries: int = 1
    end: ValidationEnded | None = None
    """Known as soon as the worker has spoken; told when its process is gone."""
    again: bool = False
    leave_by: float | None = None


class Validations:
    def __init__(self, validator: Validator, clock: Clock) -> None:
        self._validator = validator
        self._clock = clock
        self._engine: Engine | None = None
        self._number = 0
        self._underway: _Underway | None = None
        self._told: list[ValidationEnded] = []

    def start(self, command: StartValidation) -> None:
        assert self._underway is None, "one validation at a time"
        timeout_s = self._validator.timeout_s(command.record)
        due = None if timeout_s is None else self._clock.now() + START_S + timeout_s
        self._underway = _Underway(command.record, timeout_s, due)
        self._launch(self._underway)

    def news(self) -> list[ValidationEnded]:
        """What has come to its end since the last call."""
        if self._underway is not None:
            self._look(self._underway)
        told, self._told = self._told, []
        return told

    def close(self) -> None:
        """End what is under way, untold: it stays pending."""
        if self._engine is not None:
            self._engine.close()

    def _launch(self, underway: _Underway) -> None:
        if self._engine is None:
            self._engine = self._validator.engine()
        self._number += 1
        underway.end, underway.again, underway.leave_by = None, False, None
        try:
            self._engine.start(self._validator.group(underway.record, self._number))
        except OSError as problem:
            # The training is not to fail for it.
            self._underway = None
            self._told.append(_ended(underway.record, "VALIDATION_FAILED", problem=f"it could not start: {problem}"))

    def _look(self, underway: _Underway) -> None:
        assert self._engine is not None
        gone = False
        for message in self._engine.wait(0.0):
            match message:
                case WorkerReady() if underway.timeout_s is not None and not underway.ready:
                    underway.ready, underway.due = True, self._clock.now() + underway.timeout_s
                case WorkerReturned() if underway.end is None:
                    self._speaks(
                        underway, replace(_ended(underway.record, "VALIDATED"), metrics=message.value), kill=False
                    )
                case WorkerFailed(failure=failure) if underway.end is None:
                    underway.again = self._may_try_again(underway, message)
                    problem = _told(failure)
                    self._speaks(underway, _ended(underway.record, "VALIDATION_FAILED", problem=problem), kill=True)
                case WorkersStopped():
                    gone = True
        now = self._clock.now()
        if underway.end is None and underway.due is not None and now >= underway.due:
            problem = f"it took longer than {underway.timeout_s:g} s and was ended"
            self._speaks(underway, _ended(underway.record, "VALIDATION_TIMEOUT", problem=problem), kill=True)
        elif underway.leave_by is not None and now >= underway.leave_by:
            underway.leave_by = None
            self._engine.stop(kill=True)
        if gone and underway.end is not None:
            self._leaves(underway, underway.end, now)

    def _speaks(self, underway: _Underway, end: ValidationEnded, *, kill: bool) -> None:
        assert self._engine is not None
        underway.end = end
        underway.leave_by = self._clock.now() + LEAVE_S
        self._engine.stop(kill=kill)

    def _leaves(self, underway: _Underway, end: ValidationEnded, now: float) -> None:
        if underway.again and (underway.due is None or now < underway.due):
            underway.num_tries += 1
            self._launch(underway)
            return
        self._underway = None
        self._told.append(end)

    def _may_try_again(self, underway: _Underway, failed: WorkerFailed) -> bool:
        limit = self._validator.max_retries
        return (limit < 0 or underway.num_tries <= limit) and self._validator.is_retried(failed)


def _ended(record: CheckpointRecord, status: CheckpointStatus, problem: str = "") -> ValidationEnded:
    return ValidationEnded(record.attempt, record.seq, record.name, status, problem=problem)


def _told(failure: Failure) -> str:
    at = f", at {failure.frames[-1]}" if failure.frames else ""
    return f"{failure.message}{at}"
