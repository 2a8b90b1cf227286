"""What can happen in a search. Past tense, frozen, and one JSON object each in the search's journal.

What was decided upon an event is written in the same line (`then`): a driver is lost before both, or after both.
Configurations and metrics are in plain form; `Space.stored` has the first, `_core.plain` the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from paceline.tune.schedulers.scheduler import Action, Exploit, Pause, Resume, Stop
from paceline.tune.trial import Saved

SEARCH_VERSION = 1

By = Literal["scheduler", "stopper", "search"]


class Act(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that was decided about a trial."""

    do: Literal["stop", "pause", "resume", "exploit"]
    trial: str
    why: str = ""
    donor: str = ""
    config: msgspec.Raw = msgspec.Raw(b"null")
    by: By = "scheduler"


class SearchStarted(msgspec.Struct, frozen=True, tag=True):
    """A driver took the search in hand: the first of all events, and the first after a driver was lost."""

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


class TrialMade(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    trial: str
    config: msgspec.Raw
    at: float
    then: tuple[Act, ...] = ()


class NoMoreTrials(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The searcher has no further one, or the search is stopped."""

    at: float
    then: tuple[Act, ...] = ()
    why: str = ""
    """Why it is stopped; empty where it is not."""


class SearchIdle(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Nothing runs and nothing could: only paused trials are left."""

    at: float
    then: tuple[Act, ...] = ()


class TrialBegan(msgspec.Struct, frozen=True, tag=True):
    """Its run was started, or continued."""

    trial: str
    run: str
    at: float


class TrialReported(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Its run has made a report that it had not made before."""

    trial: str
    run: str
    seq: int
    metrics: msgspec.Raw
    at: float
    then: tuple[Act, ...] = ()


class TrialSaved(msgspec.Struct, frozen=True, tag=True):
    """A checkpoint of its run is committed."""

    trial: str
    run: str
    seq: int
    name: str
    at: float


class TrialCloned(msgspec.Struct, frozen=True, tag=True):
    """Its next run begins from a checkpoint of another trial, with another configuration."""

    trial: str
    run: str
    donor: str
    saved: Saved
    config: msgspec.Raw
    at: float


class TrialStayed(msgspec.Struct, frozen=True, tag=True):
    """What was decided about it could not be done: it goes on as it is."""

    trial: str
    at: float
    why: str


Ending = Literal["returned", "stopped", "paused", "failed", "interrupted"]


class TrialEnded(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Its run is no longer driven. `interrupted`: it goes on when there is room, or with the next driver."""

    trial: str
    ending: Ending
    at: float
    why: str = ""
    by: By = "scheduler"
    then: tuple[Act, ...] = ()


class TrialReset(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """One that had failed is to be run again: from its last checkpoint, or anew in a run of its own."""

    trial: str
    run: str
    at: float
    then: tuple[Act, ...] = ()
    why: str = ""
    """It had not failed: what kept it from going on in the run that it had."""


class SearchEnded(msgspec.Struct, frozen=True, tag=True):
    """No trial runs any more. `complete`: none is left to run."""

    at: float
    why: str = ""
    complete: bool = True


Event = (
    SearchStarted
    | TrialMade
    | NoMoreTrials
    | SearchIdle
    | TrialBegan
    | TrialReported
    | TrialSaved
    | TrialCloned
    | TrialStayed
    | TrialEnded
    | TrialReset
    | SearchEnded
)

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Event).decode


def acts(actions: Iterable[Action], stored: Any, by: By = "scheduler") -> tuple[Act, ...]:
    """What a scheduler decided, as it is written down; `stored` gives a configuration its plain form."""
    return tuple(_act(action, stored, by) for action in actions)


def _act(action: Action, stored: Any, by: By) -> Act:
    match action:
        case Stop(trial_id=trial, why=why):
            return Act("stop", trial, why, by=by)
        case Pause(trial_id=trial, why=why):
            return Act("pause", trial, why, by=by)
        case Resume(trial_id=trial):
            return Act("resume", trial, by=by)
        case Exploit(trial_id=trial, donor_id=donor, config=config, why=why):
            return Act("exploit", trial, why, donor, raw(stored(config)), by)
    raise TypeError(f"a scheduler returned {action!r}, which is no Stop, Pause, Resume or Exploit")


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(encode(value))


def unraw(value: msgspec.Raw) -> Any:
    return msgspec.json.decode(value)


def is_search(first: Mapping[str, Any]) -> bool:
    """Whether a journal that begins with this line is that of a search, and not of a run."""
    return first.get("type") == SearchStarted.__name__
