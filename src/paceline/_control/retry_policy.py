"""Decides whether to retry after a failure. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline._control.run import Run
from paceline._engine.messages import WorkerFailure

Budget = Literal["failures", "preemptions", "engine failures"]

MAX_ENGINE_FAILURES_WITHOUT_REPORT = 3
"""How often workers may fail to start, or be lost with their engine, without a report in between."""

FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0

_BUDGETS: dict[str, Budget] = {"preempted": "preemptions", "engine": "engine failures"}
_LOSSES = ("killed", "exited", "engine", "preempted")
"""Failures that the worker did not cause, and that may mean its machine is gone."""


@dataclass(frozen=True)
class Retry:
    charged: Budget | None
    """None: not a failure; the run only lost capacity."""


@dataclass(frozen=True)
class GiveUp:
    reason: str


def first_failure(failures: Sequence[WorkerFailure]) -> WorkerFailure:
    """The cause: the earliest failure that is not secondary."""
    return min(failures, key=lambda failure: (failure.collateral, failure.at, failure.rank))


def has_lost_capacity(run: Run) -> bool:
    """Whether there is capacity for fewer workers than there were, which is not a failure."""
    return run.num_places is not None and run.num_places < run.size


def has_progressed(run: Run) -> bool:
    """Whether this attempt committed a checkpoint, or made a report that no attempt before it had made."""
    has_committed = run.latest is not None and run.latest.attempt == run.attempt
    return has_committed or run.num_reports > run.furthest_report


def decide_retry(run: Run, failures: Sequence[WorkerFailure], fingerprint: str) -> Retry | GiveUp:
    """Decide whether to start another attempt after these failures, and which budget pays for it.

    `fingerprint` is the `failure_fingerprint` of the cause.
    """
    cause = first_failure(failures)
    if not cause.retriable:
        return GiveUp("another attempt would end the same way")
    if cause.kind in _LOSSES and has_lost_capacity(run):
        return Retry(None)
    if fingerprint and fingerprint == run.last_failure_fingerprint and not has_progressed(run):
        return GiveUp("the same exception at the same place twice: it is deterministic")
    if cause.kind == "engine" and run.num_engine_failures_without_report + 1 >= MAX_ENGINE_FAILURES_WITHOUT_REPORT:
        return GiveUp(f"the engine failed {MAX_ENGINE_FAILURES_WITHOUT_REPORT} times without a report in between")
    budget = _BUDGETS.get(cause.kind, "failures")
    used, limit, name = {
        "failures": (run.num_failures, run.max_failures, "max_failures"),
        "preemptions": (run.num_preemptions, run.max_preemption_failures, "max_preemption_failures"),
        "engine failures": (run.num_engine_failures, run.controller_failure_limit, "controller_failure_limit"),
    }[budget]
    if 0 <= limit <= used:
        return GiveUp(f"{name}={limit}")
    return Retry(budget)


def compute_backoff_s(num_without_progress: int) -> float:
    """How far apart two attempts start, after this many failures in a row without progress: 0, 0, 0.5, 1, 2, ..."""
    doublings = min(num_without_progress - 2, 10)
    return min(FIRST_BACKOFF_S * 2.0**doublings, MAX_BACKOFF_S) if doublings >= 0 else 0.0


def failure_fingerprint(failure: WorkerFailure, seq: int) -> str:
    """What identical failures have in common: the exception, the user's line, and the number of the last report.

    The rank does not matter: all ranks run the same code, and any of them may reach a bug first. Empty for failures
    that may not happen again. Numbers in the message are masked, because addresses and losses differ between attempts.
    """
    if failure.kind != "user" or failure.transient or failure.collateral:
        return ""
    message = re.sub(r"0x[0-9a-fA-F]+|\d+", "#", failure.message)
    return "\n".join((message, *failure.frames[-1:], f"after report {seq}"))
