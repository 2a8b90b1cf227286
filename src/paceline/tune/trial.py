"""What a search knows of one trial: what schedulers, searchers and stoppers are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR"]


@dataclass(frozen=True)
class Saved:
    """A committed checkpoint of a trial."""

    run: str
    """The name of the run that committed it, in the search's directory."""
    seq: int
    """Of the report that brought it, in that run."""
    name: str
    iteration: int
    """The trial's `training_iteration` at that report."""


@dataclass(frozen=True)
class Trial:
    """One trial as it stands: what schedulers and callbacks are handed. A later state is a new `Trial`."""

    trial_id: str
    """Its number, as `00012`: the same whenever the search is continued."""
    config: Mapping[str, Any]
    status: Status = "PENDING"
    last_result: Mapping[str, Any] | None = None
    """The metrics of its last report, with `training_iteration`, `time_total_s`, `trial_id` and `config`."""
    checkpoint: Saved | None = None
    """The last that is committed."""
    iteration: int = 0
    """How many reports it has made, those of the checkpoint it was cloned from included."""
    why: str = ""
    """Why it was stopped or paused, or what it failed with."""
    lineage: tuple[Saved, ...] = field(default=())
    """The checkpoints of other trials that it was cloned from, in order."""

    @property
    def is_over(self) -> bool:
        return self.status in ("TERMINATED", "ERROR")
