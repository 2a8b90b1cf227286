"""What to do about a failure. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline._control.run import Run
from paceline._engine.messages import Failure

Budget = Literal["failures", "preemptions", "engine failures"]

ENGINE_FAILURES_IN_PLACE = 3
"""How often workers may fail to start, or be lost with their engine, without a report in between."""

_BUDGETS: dict[str, Budget] = {"preempted": "preemptions", "engine": "engine failures"}
_LOSSES = ("killed", "exited", "engine", "preempted")
"""Ends that a worker did not bring about itself, and that may mean that its place is gone."""


@dataclass(frozen=True)
class Retry:
    charged: Budget | None
    """None: nobody's failure, the run just has fewer places to put workers."""


@dataclass(frozen=True)
class GiveUp:
    reason: str


def first_failure(failures: Sequence[Failure]) -> Failure:
    """The failure that caused the others: the earliest that is not itself the echo of somebody's end."""
    return min(failures, key=lambda failure: (failure.collateral, failure.at, failure.rank))


def has_lost_places(run: Run) -> bool:
    """There is less room than there were workers: nobody's failure."""
    return run.num_places is not None and run.num_places < run.size


def decided(run: Run, failures: Sequence[Failure], place: str) -> Retry | GiveUp:
    """Whether another attempt is made after these failures, and which budget pays for it.

    `place` is where the cause struck, as `place_of` tells it.
    """
    cause = first_failure(failures)
    if not cause.retriable:
        return GiveUp("another attempt would end the same way")
    if cause.kind in _LOSSES and has_lost_places(run):
        return Retry(None)
    if place and place == run.last_place:
        return GiveUp("the same exception at the same place twice: it is deterministic")
    if cause.kind == "engine" and run.num_engine_failures_in_place + 1 >= ENGINE_FAILURES_IN_PLACE:
        return GiveUp(f"{ENGINE_FAILURES_IN_PLACE} failures of the engine without a report in between")
    budget = _BUDGETS.get(cause.kind, "failures")
    used, limit, name = {
        "failures": (run.num_failures, run.max_failures, "max_failures"),
        "preemptions": (run.num_preemptions, run.max_preemption_failures, "max_preemption_failures"),
        "engine failures": (run.num_engine_failures, run.controller_failure_limit, "controller_failure_limit"),
    }[budget]
    if 0 <= limit <= used:
        return GiveUp(f"{name}={limit}")
    return Retry(budget)


def place_of(failure: Failure, seq: int) -> str:
    """What two failures have in common that are one and the same: the exception, the user's line, the report before.

    Whose it is does not matter: ranks run the same code, and any of them may be the first to come to a bug. Empty for a
    failure that may well be gone the next time. Numbers in the message are left out: addresses and losses
    differ from one attempt to the next.
    """
    if failure.kind != "user" or failure.transient or failure.collateral:
        return ""
    message = re.sub(r"0x[0-9a-fA-F]+|\d+", "#", failure.message)
    return "\n".join((message, *failure.frames[-1:], f"after report {seq}"))
