"""The checked specification of a search, ready to be driven, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline._storage.run_location import RunLocation
from paceline.train.checkpoint import Checkpoint
from paceline.train.driver.run_spec import RunHooks
from paceline.train.placement_group import PlacementGroupFactory
from paceline.tune.driver.advisers import SearchAdvisers
from paceline.tune.driver.events import CallbackStatesSaved, Event, SearchStarted
from paceline.tune.driver.resource_ledger import TrialNeeds
from paceline.tune.driver.search_capacity import SearchCapacity
from paceline.tune.driver.search_state import Search
from paceline.tune.trial import Trial


class SearchObserver(Protocol):
    def on_event(self, event: Event, search: Search) -> None: ...
    def tick(self, search: Search, now: float) -> None: ...


@dataclass(frozen=True)
class TrialRunSpec:
    run: str
    purpose: str
    initial: Checkpoint | None
    """A checkpoint of another trial to start from, if any."""
    pinned_seqs: tuple[int, ...]
    """Its own checkpoints to keep for others."""
    resources: PlacementGroupFactory | None = None
    """What a scheduler decided that it gets; None: what it asks for."""


@dataclass(frozen=True)
class SearchSpec:
    location: RunLocation
    advisers: SearchAdvisers
    capacity: SearchCapacity
    resolve_needs: Callable[[Mapping[str, Any], PlacementGroupFactory | None], TrialNeeds]
    """Returns what a trial with a configuration needs, if it asks for what it wants itself (None), or for this."""
    run_trial: Callable[[Trial, TrialRunSpec, Any, RunHooks], Any]
    """Drives a trial's run in its allocation to the end, in the calling thread."""
    decode_config: Callable[[Any], Mapping[str, Any]]
    make_start_event: Callable[[], SearchStarted]
    num_trials: int | None
    """The maximum number of trials; None: as many as the searcher suggests."""
    create_name: Callable[[Trial], str] | None = None
    create_directory: Callable[[Trial], str] | None = None
    max_concurrent: int | None = None
    time_budget_s: float | None = None
    fail_fast: bool = False
    waits_in_reports: bool = False
    """A report blocks until the search has decided about it and callbacks have seen it."""
    take_save_request: Callable[[str, int], bool] = lambda trial_id, seq: False
    """Whether a callback asked for a checkpoint of this report, which waits."""
    save_callbacks: Callable[[float], CallbackStatesSaved | None] = lambda at: None
    """Returns the states of callbacks, if they have changed."""
    observers: Sequence[SearchObserver] = ()
    say: Callable[[str], None] = lambda text: None
    reset_errored: str = ""
    """What to do with failed trials: "resume" or "restart" them."""
    resume_unfinished: bool = True
    grace_s: float = 30.0


MAX_EVENTS_IN_MEMORY = 100_000
"""Of a search with more, all reports but the last ones are read from its journal when they are asked for."""


@dataclass
class SearchOutcome:
    search: Search
    events: list[Event] | None = field(default_factory=list)
    """All events of the search in order; None if there are too many to keep in memory."""
    errors: dict[str, BaseException] = field(default_factory=dict)
    """Errors of trials that failed under this driver."""
    num_interrupts: int = 0
    """How often the user asked for a stop."""
    has_ctrl_c: bool = False
    """Whether any of them was Ctrl-C."""
    is_preempted: bool = False
    trial_without_metric: str = ""

    def add_event(self, event: Event) -> None:
        if self.events is not None:
            self.events.append(event)
            if len(self.events) > MAX_EVENTS_IN_MEMORY:
                self.events = None
