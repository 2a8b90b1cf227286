"""What a search was asked to do, checked and ready to be driven, and what came of driving it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline._storage.home import Home
from paceline.train.checkpoint import Checkpoint
from paceline.train.drive import Seams
from paceline.tune.drive.advice import Advice
from paceline.tune.drive.events import Event, SearchStarted
from paceline.tune.drive.state import Search
from paceline.tune.trainables.planned import TrialNeeds
from paceline.tune.trial import Trial


class SearchObserver(Protocol):
    def saw(self, event: Event, search: Search) -> None: ...
    def tick(self, search: Search, now: float) -> None: ...


class Room(Protocol):
    def take(self, needs: TrialNeeds) -> Any | None: ...
    def free(self, part: Any) -> None: ...
    def refusal(self, needs: TrialNeeds) -> str | None: ...
    def refresh(self) -> None: ...
    def is_lost_by(self, error: BaseException) -> bool: ...


@dataclass(frozen=True)
class Life:
    """What a trial's run is to be."""

    run: str
    purpose: str
    initial: Checkpoint | None
    """Of another trial, where it begins from that."""
    pinned: tuple[int, ...]
    """Of its own checkpoints, those that it keeps for others."""


@dataclass(frozen=True)
class Plan:
    """What a search was asked to do, checked and ready to be driven."""

    home: Home
    advice: Advice
    room: Room
    needs: Callable[[Mapping[str, Any]], TrialNeeds]
    play: Callable[[Trial, Life, Any, Seams], Any]
    """A trial's run, in a part of the room, played to its end in the thread that calls it."""
    restored: Callable[[Any], Mapping[str, Any]]
    started: Callable[[], SearchStarted]
    num_trials: int | None
    """How many there are at most; None: as many as the searcher suggests."""
    max_concurrent: int | None = None
    time_budget_s: float | None = None
    fail_fast: bool = False
    observers: Sequence[SearchObserver] = ()
    say: Callable[[str], None] = lambda text: None
    """To a person."""
    reset_errored: str = ""
    """Of trials that have failed: "resume" or "restart" them."""
    resume_unfinished: bool = True
    grace_s: float = 30.0


@dataclass
class Outcome:
    search: Search
    errors: dict[str, BaseException] = field(default_factory=dict)
    """Of trials that failed while this driver had the search."""
    interrupted: int = 0
    """How often the user asked for a stop."""
    preempted: bool = False
    failed_metric: str = ""
