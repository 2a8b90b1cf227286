"""The state of a search, computed from its events. No effects: the same events give the same search.

`apply` takes an event, `apply_decision` a decision. A trial that is to stop, pause or be cloned while its run is active
has a pending decision; its new status is known once the run has ended.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from paceline._core.arguments import is_number
from paceline._core.plain_values import from_plain, get_metric
from paceline._engine.messages import WorkerReady
from paceline.train.placement_group import PlacementGroupFactory
from paceline.tune.driver import events
from paceline.tune.trial import Status, Trial, TrialCheckpoint

_STATUSES: Mapping[events.Ending, Status] = {
    "returned": "TERMINATED",
    "stopped": "TERMINATED",
    "paused": "PAUSED",
    "failed": "ERROR",
    "interrupted": "PENDING",
}


@dataclass(frozen=True)
class BestReport:
    trial_id: str
    value: float
    iteration: int


@dataclass
class TrialRecord:
    """The state of a trial that only the search itself needs."""

    run: str
    first_iteration: int = 0
    """Its iteration count when the current run began."""
    last_seq: int = 0
    """The number of the last report recorded from the current run."""
    num_runs: int = 1
    initial: TrialCheckpoint | None = None
    """The checkpoint the current run starts from, until it commits one itself."""
    donor: str = ""
    """The trial that checkpoint belongs to."""
    pending_decision: events.TrialDecision | None = None
    started_at: float | None = None
    """None while its run is not active."""
    ran_s: float = 0.0
    """How long its earlier runs were active."""
    reported_at: float = 0.0
    num_starts: int = 0
    created_at: float = 0.0
    ended_at: float | None = None
    has_metric: bool = False
    saved_result: Mapping[str, Any] | None = None
    """The result of the report that brought its last checkpoint."""
    runs: list[str] = field(default_factory=list)
    purpose: str = ""
    """Fingerprint of the current run's configuration and initial checkpoint. Any other run is not its own."""
    is_retried: bool = False
    """It failed and is to run again, so the failure of its run is already known."""
    restored_at: float | None = None
    """When its workers were last started; and the report they continued from."""
    restored_seq: int = 0
    worker: WorkerReady | None = None
    """The process of its rank 0."""
    resources: PlacementGroupFactory | None = None
    """What a scheduler decided that it gets; None: what it asks for."""


class Search:
    def __init__(
        self,
        decode_config: Callable[[Any], Mapping[str, Any]] = lambda stored: from_plain(stored),
        locate_run: Callable[[str], str] = lambda run: "",
        resolve_resources: Callable[[Mapping[str, Any]], PlacementGroupFactory | None] = lambda config: None,
    ) -> None:
        """`decode_config` decodes a configuration from its plain form; `locate_run` returns a run's local path;
        `resolve_resources` returns what a trial with a configuration asks for, if that is known.
        """
        self._resolve_resources = resolve_resources
        self.trials: dict[str, Trial] = {}
        self.trial_records: dict[str, TrialRecord] = {}
        self.metric: str | None = None
        self.mode: str | None = None
        self.id = ""
        self.trainable = ""
        self.num_samples = 1
        self.seed = 0
        self.description: Any = None
        self.is_exhausted = False
        self.stopped_because = ""
        """Why it was stopped early, by its time limit or a stopper."""
        self.best: BestReport | None = None
        self.started_at: float | None = None
        self.ran_s = 0.0
        """How long earlier drivers ran it."""
        self.last_at = 0.0
        self.num_drivers = 0
        self.is_complete = False
        self.why = ""
        self.decode_config = decode_config
        self._locate_run = locate_run
        # Few of thousands of trials are pending, and they are scanned at every event.
        self._pending: dict[str, None] = {}
        self._pending_decisions: dict[str, events.TrialDecision] = {}

    def trials_with_status(self, status: Status) -> list[Trial]:
        return [trial for trial in self.trials.values() if trial.status == status]

    def waiting_trials(self) -> list[Trial]:
        """Trials that could be started, in the order they are tried: those that already began come first."""
        pending = [self.trials[trial_id] for trial_id in self._pending if trial_id not in self._pending_decisions]
        return sorted(pending, key=lambda trial: self.trial_records[trial.trial_id].num_starts == 0)

    def elapsed_s(self, now: float) -> float:
        """How long drivers have run the search, by the wall clock."""
        return self.ran_s + (now - self.started_at if self.started_at is not None else 0.0)

    def pinned_seqs(self, run: str) -> tuple[int, ...]:
        """Checkpoints of a run that clones started from and have not yet superseded with their own."""
        cloned = ((trial_id, record.initial) for trial_id, record in self.trial_records.items() if record.initial)
        initials = (initial for trial_id, initial in cloned if not self.trials[trial_id].is_over)
        return tuple(sorted({initial.seq for initial in initials if initial.run == run}))

    def next_run_name(self, trial_id: str) -> str:
        """Return the name of a trial's next run: `trial_00003-1` for the first that continues another trial's work."""
        record, taken = self.trial_records[trial_id], self.run_names()
        names = (f"{record.runs[0]}-{number}" for number in itertools.count(record.num_runs))
        return next(name for name in names if name not in taken)

    def run_names(self) -> dict[str, str]:
        """The names of all runs, with their trials."""
        return {run: trial_id for trial_id, record in self.trial_records.items() for run in record.runs}

    def build_result(self, event: events.TrialReported) -> dict[str, Any]:
        """Return the metrics of a report plus those that a search adds; metrics from the user take precedence."""
        record = self.trial_records[event.trial]
        # A report recovered by a driver may be older than that driver. Time must not go backwards.
        at, before = max(event.at, record.reported_at), record.reported_at or event.at
        total_s = record.ran_s + (at - record.started_at if record.started_at is not None else 0.0)
        worker = event.worker or record.worker
        own = {
            "training_iteration": record.first_iteration + event.seq,
            "time_total_s": total_s,
            "time_this_iter_s": at - before,
            "time_since_restore": max(0.0, at - record.restored_at) if record.restored_at is not None else total_s,
            "iterations_since_restore": max(0, event.seq - record.restored_seq),
            "timestamp": int(event.at),
            "date": time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(event.at)),
            "trial_id": event.trial,
            "done": False,
            "config": dict(self.trials[event.trial].config),
        }
        if worker is not None:
            own |= {"pid": worker.pid, "hostname": worker.host, "node_ip": worker.address}
        return {**own, **from_plain(events.decode_raw(event.metrics))}

    def is_new_report(self, trial_id: str, run: str, seq: int) -> bool:
        """False for a report that was recorded before and is repeated after a restart."""
        record = self.trial_records[trial_id]
        return record.run == run and seq > record.last_seq

    def apply(self, event: events.Event) -> None:
        match event:
            case events.SearchStarted():
                self._on_search_started(event)
            case events.TrialMade(trial=trial, config=config, at=at, name=name):
                run = event.directory or run_name(trial, 0)
                decoded = self.decode_config(events.decode_raw(config))
                self.trials[trial] = Trial(
                    trial,
                    decoded,
                    local_path=self._locate_run(run),
                    resources=self._resolve_resources(decoded),
                    trial_name=name,
                    trainable_name=self.trainable,
                )
                self._pending[trial] = None
                self.trial_records[trial] = TrialRecord(
                    run, created_at=at, runs=[run], purpose=purpose_fingerprint(config)
                )
            case events.NoMoreTrials(why=why):
                self.is_exhausted = True
                self.stopped_because = why or self.stopped_because
            case events.TrialBegan(trial=trial, at=at):
                record = self.trial_records[trial]
                record.started_at = record.reported_at = at
                record.num_starts += 1
                self._update_trial(trial, status="RUNNING")
                self._remember_restore(trial, at)
            case events.TrialRetried(trial=trial, at=at):
                self._remember_restore(trial, at)
            case events.TrialReported():
                self._on_trial_reported(event)
            case events.TrialSaved(trial=trial, run=run, seq=seq, name=name):
                record = self.trial_records[trial]
                if run == record.run:
                    record.initial = None
                    saved = TrialCheckpoint(run, seq, name, record.first_iteration + seq)
                    self._update_trial(trial, checkpoint=saved)
                    self._remember_saved_result(trial)
            case events.TrialCloned():
                self._on_trial_cloned(event)
            case events.TrialCloneSkipped(trial=trial):
                self._set_pending_decision(trial, None)
            case events.TrialEnded():
                self._on_trial_ended(event)
            case events.TrialReset():
                self._on_trial_reset(event)
            case events.SearchEnded(at=at, why=why, complete=complete):
                self.ran_s = self.elapsed_s(at)
                self.started_at = None
                self.is_complete, self.why = complete, why
        self.last_at = max(self.last_at, event.at)

    def apply_decisions(self, event: events.Event) -> None:
        """Apply the decisions that were recorded with an event."""
        for decision in getattr(event, "then", ()):
            self.apply_decision(decision)

    def apply_decision(self, decision: events.TrialDecision) -> None:
        """Apply a decision about a trial. A finished trial stays finished."""
        trial, record = self.trials.get(decision.trial), self.trial_records.get(decision.trial)
        if trial is None or record is None or trial.is_over:
            return
        first = record.pending_decision
        if decision.resources is not None:
            record.resources = PlacementGroupFactory(decision.resources.bundles, decision.resources.strategy)
            self._update_trial(decision.trial, resources=record.resources)
        if decision.do == "resume":
            if first is not None and first.do == "pause":
                resumed = msgspec.structs.replace(first, do="resume") if trial.status == "RUNNING" else None
                self._set_pending_decision(decision.trial, resumed)
            if trial.status == "PAUSED":
                self._update_trial(decision.trial, status="PENDING", why="")
        elif first is None or decision.do == "stop" or first.do in ("pause", "resume"):
            self._set_pending_decision(decision.trial, decision)

    def ready_decisions(self) -> list[events.TrialDecision]:
        """Pending decisions that can be carried out now, because the trial's run is not active."""
        decisions = self._pending_decisions.values()
        return [decision for decision in decisions if self.trials[decision.trial].status != "RUNNING"]

    def _on_search_started(self, event: events.SearchStarted) -> None:
        if self.started_at is not None:  # The last driver was lost, some time after its last event.
            self.ran_s += max(0.0, self.last_at - self.started_at)
        self.started_at = event.at
        self.num_drivers += 1
        if (event.metric, event.mode) != (self.metric, self.mode):
            self._change_metric(event.metric, event.mode)
        self.id = event.id
        self.trainable = event.trainable
        self.num_samples, self.seed = event.num_samples, event.seed
        self.description = events.decode_raw(event.described)
        self.is_complete = self.is_exhausted = False
        self.why = self.stopped_because = ""
        for trial_id, trial in self.trials.items():
            if trial.status == "RUNNING":
                self._stop_timing(trial_id, self.last_at)
                self._update_trial(trial_id, status="PENDING")

    def _on_trial_reported(self, event: events.TrialReported) -> None:
        record = self.trial_records[event.trial]
        if not self.is_new_report(event.trial, event.run, event.seq):
            return
        result = self.build_result(event)
        record.last_seq, record.reported_at = event.seq, max(record.reported_at, event.at)
        record.worker = event.worker or record.worker
        iteration = record.first_iteration + event.seq
        self._update_trial(event.trial, last_result=result, iteration=iteration)
        self._remember_saved_result(event.trial)
        self._update_best(self.trials[event.trial])

    def _remember_restore(self, trial_id: str, at: float) -> None:
        record, saved = self.trial_records[trial_id], self.trials[trial_id].checkpoint
        record.restored_at = at
        record.restored_seq = saved.seq if saved is not None and saved.run == record.run else 0

    def _remember_saved_result(self, trial_id: str) -> None:
        """Remember the result that belongs to the last checkpoint, whichever of the two arrives first."""
        trial = self.trials[trial_id]
        if trial.checkpoint is not None and trial.checkpoint.iteration == trial.iteration:
            self.trial_records[trial_id].saved_result = trial.last_result

    def _change_metric(self, metric: str | None, mode: str | None) -> None:
        """Switch to another metric, for which only the last values are known."""
        self.metric, self.mode, self.best = metric, mode, None
        for trial in self.trials.values():
            self.trial_records[trial.trial_id].has_metric = False
            self._update_best(trial)

    def _update_best(self, trial: Trial) -> None:
        if self.metric is None or trial.last_result is None:
            return
        value = get_metric(trial.last_result, self.metric)
        if is_number(value):
            self.trial_records[trial.trial_id].has_metric = True
            if value == value and (self.best is None or self._is_better(value, self.best.value)):
                self.best = BestReport(trial.trial_id, value, trial.iteration)

    def _is_better(self, value: float, other: float) -> bool:
        return value > other if self.mode == "max" else value < other

    def _on_trial_cloned(self, event: events.TrialCloned) -> None:
        record = self.trial_records[event.trial]
        record.run = event.run
        self._update_trial(event.trial, local_path=self._locate_run(event.run))
        record.runs.append(event.run)
        record.num_runs += 1
        record.first_iteration = event.saved.iteration
        record.last_seq = 0
        record.initial, record.donor = event.saved, event.donor
        record.purpose, record.is_retried = purpose_fingerprint(event.config, event.saved), False
        self._set_pending_decision(event.trial, None)
        lineage = (*self.trials[event.trial].lineage, event.saved)
        config = self.decode_config(events.decode_raw(event.config))
        self._update_trial(event.trial, config=config, lineage=lineage, status="PENDING", why="")
        self._update_trial(event.trial, resources=record.resources or self._resolve_resources(config))
        self._update_trial(event.trial, checkpoint=event.saved, iteration=event.saved.iteration)
        donated = self.trial_records[event.donor].saved_result
        if donated is not None and donated["training_iteration"] == event.saved.iteration:
            # Show its current state now: its own first report may take a while, or never come.
            own = {"trial_id": event.trial, "config": dict(config), "done": False, "time_total_s": record.ran_s}
            own |= {"time_since_restore": 0.0, "iterations_since_restore": 0}
            of_donor = ("pid", "hostname", "node_ip")
            record.saved_result = {name: value for name, value in donated.items() if name not in of_donor} | own
            self._update_trial(event.trial, last_result=record.saved_result)

    def _on_trial_ended(self, event: events.TrialEnded) -> None:
        record = self.trial_records[event.trial]
        self._stop_timing(event.trial, event.at)
        if event.ending != "interrupted":
            record.is_retried = False
        status, pending = _STATUSES[event.ending], record.pending_decision
        if status != "PENDING":
            self._set_pending_decision(event.trial, None)
        if status == "PAUSED" and pending is not None and pending.do == "resume":
            status = "PENDING"  # It was resumed before it had actually paused.
        if status in ("TERMINATED", "ERROR"):
            record.ended_at = event.at
        self._update_trial(event.trial, status=status, why=event.why if status != "PENDING" else "")
        last = self.trials[event.trial].last_result
        if status in ("TERMINATED", "ERROR") and last is not None and last.get("done") is False:
            self._update_trial(event.trial, last_result={**last, "done": True})

    def _on_trial_reset(self, event: events.TrialReset) -> None:
        trial_id, record = event.trial, self.trial_records[event.trial]
        self._stop_timing(trial_id, event.at)
        if not event.why:
            self._set_pending_decision(trial_id, None)
            record.is_retried = True
        record.ended_at = None
        if event.run != record.run:
            record.runs.append(event.run)
            record.num_runs += 1
            record.run = event.run
            self._update_trial(trial_id, local_path=self._locate_run(event.run))
            if not event.why:
                record.first_iteration = record.last_seq = 0
                record.initial = None
                self._update_trial(trial_id, checkpoint=None, iteration=0, last_result=None)
            else:  # Reports recorded earlier are not recorded again.
                self._update_trial(trial_id, checkpoint=record.initial)
        self._update_trial(trial_id, status="PENDING", why="")

    def _stop_timing(self, trial_id: str, at: float) -> None:
        record = self.trial_records[trial_id]
        if record.started_at is not None:
            record.ran_s += max(0.0, at - record.started_at)
            record.started_at = None

    def _set_pending_decision(self, trial_id: str, decision: events.TrialDecision | None) -> None:
        self.trial_records[trial_id].pending_decision = decision
        if decision is None:
            self._pending_decisions.pop(trial_id, None)
        else:
            self._pending_decisions[trial_id] = decision

    def _update_trial(self, trial_id: str, **changes: Any) -> None:
        trial = self.trials[trial_id] = replace(self.trials[trial_id], **changes)
        if trial.status == "PENDING":
            self._pending[trial_id] = None
        else:
            self._pending.pop(trial_id, None)


def total_driven_s(past: Iterable[events.Event]) -> float:
    """How long drivers ran a search, without the unrecorded time after the last event."""
    ran_s, began_at, last_at = 0.0, None, 0.0
    for event in past:
        if isinstance(event, events.SearchStarted):
            ran_s += max(0.0, last_at - began_at) if began_at is not None else 0.0
            began_at = event.at
        elif isinstance(event, events.SearchEnded) and began_at is not None:
            ran_s, began_at = ran_s + event.at - began_at, None
        last_at = max(last_at, event.at)
    return ran_s + (max(0.0, last_at - began_at) if began_at is not None else 0.0)


def purpose_fingerprint(config: msgspec.Raw, saved: TrialCheckpoint | None = None) -> str:
    """Fingerprint that identifies a run by its configuration and initial checkpoint."""
    fingerprinted = bytes(config) if saved is None else b"%s %s" % (bytes(config), msgspec.json.encode(saved))
    return hashlib.sha256(fingerprinted).hexdigest()[:16]


def run_name(trial_id: str, number: int) -> str:
    """Return a run's default name: `trial_00003`, or `trial_00003-1` for the first run of another trial's work."""
    first = f"trial_{trial_id.rpartition('_')[2]}"  # In the directory of the search, the number is enough.
    return f"{first}-{number}" if number else first
