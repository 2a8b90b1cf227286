"""A search as its events tell it. No effects: the same events give the same search.

`apply` takes what happened, `take` what was decided. A trial that is to stop, pause or be cloned while its run is under
way is `leaving`; what it becomes is known when the run has ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from paceline._core.plain import looked_up, unplain
from paceline.tune.drive.events import (
    Act,
    Event,
    NoMoreTrials,
    SearchEnded,
    SearchStarted,
    TrialBegan,
    TrialCloned,
    TrialEnded,
    TrialMade,
    TrialReported,
    TrialReset,
    TrialSaved,
    TrialStayed,
    unraw,
)
from paceline.tune.trial import Saved, Status, Trial


@dataclass(frozen=True)
class Best:
    """The best value that any trial has reported so far."""

    trial_id: str
    value: float
    iteration: int


@dataclass
class Standing:
    """Where a trial is, beyond what others are shown of it."""

    run: str
    """Of its current life."""
    first_iteration: int = 0
    """How many reports it counted when that life began."""
    seen: int = 0
    """The number of the last report of that life that was told."""
    num_lives: int = 1
    initial: Saved | None = None
    """What that life begins from, for as long as it has committed nothing itself."""
    donor: str = ""
    """Whose that is."""
    leaving: Act | None = None
    began_at: float | None = None
    """None while its run is not under way."""
    ran_s: float = 0.0
    """How long its runs were under way before."""
    reported_at: float = 0.0
    num_begun: int = 0
    made_at: float = 0.0
    ended_at: float | None = None
    has_metric: bool = False
    """It has reported the metric at least once."""
    saved_result: Mapping[str, Any] | None = None
    """Of the report that brought its last checkpoint."""
    runs: list[str] = field(default_factory=list)
    """Of all its lives, in order."""
    purpose: str = ""
    """Of its current life: what it was asked to do, and from where. A run for anything else is not its own."""
    is_retried: bool = False
    """It had failed and is to be run again: that its run has failed is known."""


class Search:
    def __init__(self, restored: Callable[[Any], Mapping[str, Any]] = lambda stored: unplain(stored)) -> None:
        """`restored` makes a configuration of its plain form."""
        self.trials: dict[str, Trial] = {}
        self.standing: dict[str, Standing] = {}
        self.metric: str | None = None
        self.mode: str | None = None
        self.trainable = ""
        self.num_samples = 1
        self.seed = 0
        self.described: Any = None
        self.is_exhausted = False
        """The searcher has no further trial."""
        self.stopped_because = ""
        """Why it was stopped before its end, by its time or a stopper."""
        self.best: Best | None = None
        self.began_at: float | None = None
        """When the driver that has it began."""
        self.ran_s = 0.0
        """How long earlier drivers had it."""
        self.last_at = 0.0
        self.num_drivers = 0
        self.is_complete = False
        self.why = ""
        """Why it ended."""
        self._restored = restored
        # Of thousands of trials these are few, and they are looked through at every event.
        self._pending: dict[str, None] = {}
        self._leaving: dict[str, None] = {}

    # What others ask.

    def of_status(self, status: Status) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.status == status]

    def waiting(self) -> list[Trial]:
        """Those that could be started, in the order in which they are tried: the ones that began already first."""
        pending = [self.trials[trial_id] for trial_id in self._pending if trial_id not in self._leaving]
        return sorted(pending, key=lambda trial: self.standing[trial.trial_id].num_begun == 0)

    def elapsed_s(self, now: float) -> float:
        """How long drivers have had it, by the wall clock."""
        return self.ran_s + (now - self.began_at if self.began_at is not None else 0.0)

    def pinned(self, run: str) -> tuple[int, ...]:
        """Of a run's checkpoints, those that clones begin from which have none of their own yet."""
        return tuple(
            sorted(
                {
                    standing.initial.seq
                    for trial_id, standing in self.standing.items()
                    if standing.initial is not None
                    and standing.initial.run == run
                    and not self.trials[trial_id].is_over
                }
            )
        )

    def result(self, event: TrialReported) -> dict[str, Any]:
        """The metrics of a report with those that a search adds; what the user reports under such a name stays."""
        standing = self.standing[event.trial]
        # A report may be older than the driver that tells of it, which found it. Time does not go back for that.
        at, before = max(event.at, standing.reported_at), standing.reported_at or event.at
        total_s = standing.ran_s + (at - standing.began_at if standing.began_at is not None else 0.0)
        own = {
            "training_iteration": standing.first_iteration + event.seq,
            "time_total_s": total_s,
            "time_this_iter_s": at - before,
            "timestamp": int(event.at),
            "trial_id": event.trial,
            "done": False,
            "config": dict(self.trials[event.trial].config),
        }
        return {**own, **unplain(unraw(event.metrics))}

    def is_new(self, trial_id: str, run: str, seq: int) -> bool:
        """Whether a report was not told before: one that is made again after a restart was."""
        standing = self.standing[trial_id]
        return standing.run == run and seq > standing.seen

    # What happened.

    def apply(self, event: Event) -> None:
        match event:
            case SearchStarted():
                self._started(event)
            case TrialMade(trial=trial, config=config, at=at):
                self.trials[trial] = Trial(trial, self._restored(unraw(config)))
                self._pending[trial] = None
                run = run_name(trial, 0)
                self.standing[trial] = Standing(run, made_at=at, runs=[run], purpose=purpose_of(config))
            case NoMoreTrials(why=why):
                self.is_exhausted = True
                self.stopped_because = why or self.stopped_because
            case TrialBegan(trial=trial, at=at):
                standing = self.standing[trial]
                standing.began_at = standing.reported_at = at
                standing.num_begun += 1
                self._change(trial, status="RUNNING")
            case TrialReported():
                self._reported(event)
            case TrialSaved(trial=trial, run=run, seq=seq, name=name):
                standing = self.standing[trial]
                if run == standing.run:
                    standing.initial = None
                    saved = Saved(run, seq, name, standing.first_iteration + seq)
                    self._change(trial, checkpoint=saved)
                    self._remember_saved(trial)
            case TrialCloned():
                self._cloned(event)
            case TrialStayed(trial=trial):
                self._leave(trial, None)
            case TrialEnded():
                self._ended(event)
            case TrialReset():
                self._reset(event)
            case SearchEnded(at=at, why=why, complete=complete):
                self.ran_s = self.elapsed_s(at)
                self.began_at = None
                self.is_complete, self.why = complete, why
        self.last_at = max(self.last_at, event.at)

    def take(self, act: Act) -> None:
        """What was decided about a trial. One that is over stays so."""
        trial, standing = self.trials.get(act.trial), self.standing.get(act.trial)
        if trial is None or standing is None or trial.is_over:
            return
        first = standing.leaving
        if act.do == "resume":
            if first is not None and first.do == "pause":
                self._leave(
                    act.trial, None if self._is_at_rest(act.trial) else msgspec.structs.replace(first, do="resume")
                )
            if trial.status == "PAUSED":
                self._change(act.trial, status="PENDING", why="")
        elif first is None or act.do == "stop" or first.do in ("pause", "resume"):
            self._leave(act.trial, act)

    def settled(self) -> list[Act]:
        """Of those that are to leave, the ones whose run is not under way: what is to become of them can be done."""
        found = (self.standing[trial_id].leaving for trial_id in self._leaving if self._is_at_rest(trial_id))
        return [act for act in found if act is not None]

    def _is_at_rest(self, trial_id: str) -> bool:
        return self.trials[trial_id].status != "RUNNING"

    def _started(self, event: SearchStarted) -> None:
        if self.began_at is not None:  # The last driver was lost, at some time after its last event.
            self.ran_s += max(0.0, self.last_at - self.began_at)
        self.began_at = event.at
        self.num_drivers += 1
        if (event.metric, event.mode) != (self.metric, self.mode):
            self._compare_by(event.metric, event.mode)
        self.trainable = event.trainable
        self.num_samples, self.seed = event.num_samples, event.seed
        self.described = unraw(event.described)
        self.is_complete = self.is_exhausted = False
        self.why = self.stopped_because = ""
        for trial_id, trial in self.trials.items():
            if trial.status == "RUNNING":
                self._rest(trial_id, self.last_at)
                self._change(trial_id, status="PENDING")

    def _reported(self, event: TrialReported) -> None:
        standing = self.standing[event.trial]
        if not self.is_new(event.trial, event.run, event.seq):
            return
        result = self.result(event)
        standing.seen, standing.reported_at = event.seq, max(standing.reported_at, event.at)
        iteration = standing.first_iteration + event.seq
        self._change(event.trial, last_result=result, iteration=iteration)
        self._remember_saved(event.trial)
        self._compare(self.trials[event.trial])

    def _remember_saved(self, trial_id: str) -> None:
        """The result that belongs to the last checkpoint, whichever of the two is told first."""
        trial = self.trials[trial_id]
        if trial.checkpoint is not None and trial.checkpoint.iteration == trial.iteration:
            self.standing[trial_id].saved_result = trial.last_result

    def _compare_by(self, metric: str | None, mode: str | None) -> None:
        """By another metric than before, of which only the last values are known."""
        self.metric, self.mode, self.best = metric, mode, None
        for trial in self.trials.values():
            self.standing[trial.trial_id].has_metric = False
            self._compare(trial)

    def _compare(self, trial: Trial) -> None:
        if self.metric is None or trial.last_result is None:
            return
        value = looked_up(trial.last_result, self.metric)
        if isinstance(value, int | float) and not isinstance(value, bool):
            self.standing[trial.trial_id].has_metric = True
            if value == value and (self.best is None or self._is_better(value, self.best.value)):
                self.best = Best(trial.trial_id, value, trial.iteration)

    def _is_better(self, value: float, other: float) -> bool:
        return value > other if self.mode == "max" else value < other

    def _cloned(self, event: TrialCloned) -> None:
        standing = self.standing[event.trial]
        standing.run = event.run
        standing.runs.append(event.run)
        standing.num_lives += 1
        standing.first_iteration = event.saved.iteration
        standing.seen = 0
        standing.initial, standing.donor = event.saved, event.donor
        standing.purpose, standing.is_retried = purpose_of(event.config, event.saved), False
        self._leave(event.trial, None)
        lineage = (*self.trials[event.trial].lineage, event.saved)
        config = self._restored(unraw(event.config))
        self._change(
            event.trial,
            config=config,
            lineage=lineage,
            checkpoint=event.saved,
            iteration=event.saved.iteration,
            status="PENDING",
            why="",
        )
        donated = self.standing[event.donor].saved_result
        if donated is not None and donated["training_iteration"] == event.saved.iteration:
            # What it stands at now, though it may be a while until it reports anything itself, or for ever.
            standing.saved_result = {**donated, "trial_id": event.trial, "config": dict(config), "done": False}
            self._change(event.trial, last_result=standing.saved_result)

    def _ended(self, event: TrialEnded) -> None:
        standing = self.standing[event.trial]
        self._rest(event.trial, event.at)
        if event.ending != "interrupted":
            standing.is_retried = False
        status: Status = {
            "returned": "TERMINATED",
            "stopped": "TERMINATED",
            "paused": "PAUSED",
            "failed": "ERROR",
            "interrupted": "PENDING",
        }[event.ending]  # type: ignore[assignment]
        leaving = standing.leaving
        if status in ("TERMINATED", "ERROR", "PAUSED"):
            self._leave(event.trial, None)
        if status == "PAUSED" and leaving is not None and leaving.do == "resume":
            status = "PENDING"  # It was let go on before it had come to rest.
        if status in ("TERMINATED", "ERROR"):
            standing.ended_at = event.at
        why = event.why if status != "PENDING" else ""
        self._change(event.trial, status=status, why=why)
        last = self.trials[event.trial].last_result
        if status in ("TERMINATED", "ERROR") and last is not None and last.get("done") is False:
            self._change(event.trial, last_result={**last, "done": True})

    def _reset(self, event: TrialReset) -> None:
        trial_id, standing = event.trial, self.standing[event.trial]
        self._rest(trial_id, event.at)
        if not event.why:
            self._leave(trial_id, None)
            standing.is_retried = True
        standing.ended_at = None
        if event.run != standing.run:
            standing.runs.append(event.run)
            standing.num_lives += 1
            standing.run = event.run
            if not event.why:
                self._from_the_start(trial_id)
            else:  # What was told already is not told again.
                self._change(trial_id, checkpoint=standing.initial)
        self._change(trial_id, status="PENDING", why="")

    def _from_the_start(self, trial_id: str) -> None:
        standing = self.standing[trial_id]
        standing.first_iteration = standing.seen = 0
        standing.initial = None
        self._change(trial_id, checkpoint=None, iteration=0, last_result=None)

    def _rest(self, trial_id: str, at: float) -> None:
        standing = self.standing[trial_id]
        if standing.began_at is not None:
            standing.ran_s += max(0.0, at - standing.began_at)
            standing.began_at = None

    def _leave(self, trial_id: str, act: Act | None) -> None:
        self.standing[trial_id].leaving = act
        if act is None:
            self._leaving.pop(trial_id, None)
        else:
            self._leaving[trial_id] = None

    def _change(self, trial_id: str, **changes: Any) -> None:
        trial = self.trials[trial_id] = replace(self.trials[trial_id], **changes)
        if trial.status == "PENDING":
            self._pending[trial_id] = None
        else:
            self._pending.pop(trial_id, None)


def driven_s(past: Iterable[Event]) -> float:
    """How long drivers have had a search, without what nobody told of the last."""
    ran_s, began_at, last_at = 0.0, None, 0.0
    for event in past:
        if isinstance(event, SearchStarted):
            ran_s += max(0.0, last_at - began_at) if began_at is not None else 0.0
            began_at = event.at
        elif isinstance(event, SearchEnded) and began_at is not None:
            ran_s, began_at = ran_s + event.at - began_at, None
        last_at = max(last_at, event.at)
    return ran_s + (max(0.0, last_at - began_at) if began_at is not None else 0.0)


def purpose_of(config: msgspec.Raw, saved: Saved | None = None) -> str:
    """By which a run is known to be for this configuration, and to have begun from that checkpoint."""
    told = bytes(config) if saved is None else b"%s %s" % (bytes(config), msgspec.json.encode(saved))
    return hashlib.sha256(told).hexdigest()[:16]


def run_name(trial_id: str, life: int) -> str:
    """Of a trial's run: `trial_00003`, and `trial_00003-1` for the first that goes on from another trial's work."""
    return f"trial_{trial_id}-{life}" if life else f"trial_{trial_id}"
