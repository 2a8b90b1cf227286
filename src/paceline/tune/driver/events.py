"""The events of a search: past tense, frozen, and one JSON object each in the search's journal.

The decisions on an event are written on the same line (`then`), so a crash loses both or neither. Configurations and
metrics are in plain form: see `Space.encode_config` and `_core.plain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from paceline._engine.messages import WorkerReady
from paceline.tune.schedulers.scheduler import Action, Exploit, Pause, Reallocate, Resume, Stop
from paceline.tune.trial import TrialCheckpoint

SEARCH_VERSION = 1

By = Literal["scheduler", "stopper", "search"]


class PlacedResources(msgspec.Struct, frozen=True):
    bundles: tuple[dict[str, float], ...]
    strategy: str = "PACK"


class TrialDecision(msgspec.Struct, frozen=True, omit_defaults=True):
    do: Literal["stop", "pause", "resume", "exploit"]
    trial: str
    why: str = ""
    donor: str = ""
    config: msgspec.Raw = msgspec.Raw(b"null")
    by: By = "scheduler"
    resources: PlacedResources | None = None
    """With a pause: what the trial has when it runs again."""


class SearchStarted(msgspec.Struct, frozen=True, tag="search_started"):
    """A driver started driving the search: the first event of all, and the first after a driver was lost."""

    trainable: str
    num_samples: int
    seed: int
    metric: str | None = None
    mode: str | None = None
    described: msgspec.Raw = msgspec.Raw(b"null")
    """The space, the searcher and the scheduler, as far as they have a plain form."""
    at: float = 0.0
    pid: int = 0
    host: str = ""
    lease: int = 0
    version: int = SEARCH_VERSION
    id: str = ""
    """Makes the ids of its trials differ from those of other searches; empty in searches of earlier versions."""


class TrialMade(msgspec.Struct, frozen=True, tag="trial_made", omit_defaults=True):
    trial: str
    config: msgspec.Raw
    at: float
    then: tuple[TrialDecision, ...] = ()
    name: str = ""
    """What `TuneConfig(trial_name_creator)` returned."""
    directory: str = ""
    """What `TuneConfig(trial_dirname_creator)` returned: the name of its first run."""


class NoMoreTrials(msgspec.Struct, frozen=True, tag="no_more_trials", omit_defaults=True):
    """The searcher has no further trial, or the search is being stopped."""

    at: float
    then: tuple[TrialDecision, ...] = ()
    why: str = ""
    """Why it is being stopped; empty if it is not."""


class SearchIdle(msgspec.Struct, frozen=True, tag="search_idle", omit_defaults=True):
    """Nothing runs and nothing can start: only paused trials are left."""

    at: float
    then: tuple[TrialDecision, ...] = ()


class TrialChosen(msgspec.Struct, frozen=True, tag="trial_chosen", omit_defaults=True):
    """The scheduler chose a paused trial to run next."""

    trial: str
    at: float
    then: tuple[TrialDecision, ...] = ()


class TrialBegan(msgspec.Struct, frozen=True, tag="trial_began"):
    """The trial's run was started or resumed."""

    trial: str
    run: str
    at: float


class TrialReported(msgspec.Struct, frozen=True, tag="trial_reported", omit_defaults=True):
    trial: str
    run: str
    seq: int
    metrics: msgspec.Raw
    at: float
    then: tuple[TrialDecision, ...] = ()
    worker: WorkerReady | None = None
    """The process of rank 0, with the first report that the search has of it."""


class TrialSaved(msgspec.Struct, frozen=True, tag="trial_saved"):
    trial: str
    run: str
    seq: int
    name: str
    at: float


class TrialCloned(msgspec.Struct, frozen=True, tag="trial_cloned"):
    """The trial's next run starts from a checkpoint of another trial, with another configuration."""

    trial: str
    run: str
    donor: str
    saved: TrialCheckpoint
    config: msgspec.Raw
    at: float


class TrialCloneSkipped(msgspec.Struct, frozen=True, tag="trial_clone_skipped"):
    """A decision to clone the trial could not be carried out; the trial continues unchanged."""

    trial: str
    at: float
    why: str


Ending = Literal["returned", "stopped", "paused", "failed", "interrupted"]


class TrialEnded(msgspec.Struct, frozen=True, tag="trial_ended", omit_defaults=True):
    """The trial's run is no longer driven. `interrupted`: it resumes when there is capacity, or a next driver."""

    trial: str
    ending: Ending
    at: float
    why: str = ""
    by: By = "scheduler"
    then: tuple[TrialDecision, ...] = ()


class TrialReset(msgspec.Struct, frozen=True, tag="trial_reset", omit_defaults=True):
    """A failed trial is to run again: from its last checkpoint, or from scratch in a new run."""

    trial: str
    run: str
    at: float
    then: tuple[TrialDecision, ...] = ()
    why: str = ""
    """For a trial that had not failed: what prevented it from resuming in its existing run."""


class TrialRetried(msgspec.Struct, frozen=True, tag="trial_retried"):
    """Workers of the trial's run failed and were started again."""

    trial: str
    run: str
    at: float


class CallbackStatesSaved(msgspec.Struct, frozen=True, tag="callback_states_saved"):
    """What callbacks want to have again when the search is resumed."""

    at: float
    states: msgspec.Raw
    """Pairs of a callback's class and its state, in the order of the callbacks."""


class SearchEnded(msgspec.Struct, frozen=True, tag="search_ended"):
    """No trial is running any more. `complete`: none is left to run."""

    at: float
    why: str = ""
    complete: bool = True


Event = (
    SearchStarted
    | TrialMade
    | NoMoreTrials
    | SearchIdle
    | TrialChosen
    | TrialBegan
    | TrialReported
    | TrialSaved
    | TrialCloned
    | TrialCloneSkipped
    | TrialEnded
    | TrialReset
    | TrialRetried
    | CallbackStatesSaved
    | SearchEnded
)

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Event).decode


def to_decisions(actions: Iterable[Action], encode_config: Any, by: By = "scheduler") -> tuple[TrialDecision, ...]:
    """Convert a scheduler's actions to journal form; `encode_config` converts a configuration to plain form."""
    return tuple(decision for action in actions for decision in _to_decision(action, encode_config, by))


def _to_decision(action: Action, encode_config: Any, by: By) -> Iterator[TrialDecision]:
    match action:
        case Stop(trial_id=trial, why=why):
            yield TrialDecision("stop", trial, why, by=by)
        case Pause(trial_id=trial, why=why):
            yield TrialDecision("pause", trial, why, by=by)
        case Resume(trial_id=trial):
            yield TrialDecision("resume", trial, by=by)
        case Exploit(trial_id=trial, donor_id=donor, config=config, why=why):
            yield TrialDecision("exploit", trial, why, donor, encode_raw(encode_config(config)), by)
        case Reallocate(trial_id=trial, resources=resources, why=why):
            placed = PlacedResources(tuple(dict(bundle) for bundle in resources.bundles), resources.strategy)
            yield TrialDecision("pause", trial, why, by=by, resources=placed)
            yield TrialDecision("resume", trial, by=by)
        case _:
            raise TypeError(f"a scheduler must return Stop, Pause, Resume, Exploit or Reallocate, got {action!r}")


def encode_raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(encode(value))


def decode_raw(value: msgspec.Raw) -> Any:
    return msgspec.json.decode(value)


def is_search_header(first: Mapping[str, Any]) -> bool:
    """Whether a journal with this first line belongs to a search rather than a run."""
    return first.get("type") == SearchStarted.__struct_config__.tag
