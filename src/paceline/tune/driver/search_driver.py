"""The search loop: receives messages from trials, journals events and decisions, and starts and stops runs.

All decisions are made here, in one thread. An event and the decisions on it are in the journal before they take effect.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import msgspec

from paceline._control.recovery import load_history
from paceline._control.request_inbox import RequestInbox
from paceline._control.storage_thread import StorageThread
from paceline._core.arguments import bad_value
from paceline._core.errors import StorageError
from paceline._storage.run_layout import is_checkpoint_name
from paceline._storage.run_location import RunLocation
from paceline.train.checkpoint import Checkpoint
from paceline.train.driver.run_spec import RunEnvironment
from paceline.train.placement_group import PlacementGroupFactory
from paceline.tune.driver import events, trial_run
from paceline.tune.driver.cloning import CloneCoordinator, LiveTrial
from paceline.tune.driver.requests import SearchRequestHandler
from paceline.tune.driver.resource_ledger import TrialNeeds
from paceline.tune.driver.search_spec import SearchOutcome, SearchSpec, TrialRunSpec
from paceline.tune.driver.search_state import Search
from paceline.tune.driver.search_storage import EventRecorder, OpenSearch, trial_run_location
from paceline.tune.search.searcher import Searcher
from paceline.tune.trainables.resources import to_placement_group
from paceline.tune.trial import Trial, TrialCheckpoint

log = logging.getLogger("paceline")

TICK_S = 0.1
SAVE_CALLBACKS_EVERY_S = 10.0


class TrialSource:
    """Creates trials, and resumes paused ones when nothing else can run."""

    def __init__(
        self,
        spec: SearchSpec,
        search: Search,
        recorder: EventRecorder,
        execute_decisions: Callable[[], None],
        wall_time: Callable[[], float],
    ) -> None:
        self._spec = spec
        self._search = search
        self._recorder = recorder
        self._execute_decisions = execute_decisions
        self._wall_time = wall_time

    def make_trial(self, *, is_idle: bool) -> Trial | None:
        """Return a trial to start next, created now if the searcher has one; `is_idle`: no trial is running."""
        search, advisers = self._search, self._spec.advisers
        if search.is_exhausted:
            return self._resume_trial(is_idle)
        number = len(search.trials)
        trial_id = f"{search.id}_{number:05d}" if search.id else f"{number:05d}"
        suggested: msgspec.Raw | str | None = Searcher.FINISHED
        if self._spec.num_trials is None or number < self._spec.num_trials:
            suggested = advisers.suggest_config(trial_id)
        if suggested is None:
            if not is_idle or search.waiting_trials() or search.trials_with_status("PAUSED"):
                return self._resume_trial(is_idle)
            name = type(advisers.searcher).__name__
            log.warning("%s suggests nothing although no trial is running: ending the search", name)
            suggested = Searcher.FINISHED
        if isinstance(suggested, str):
            self._recorder.record(events.NoMoreTrials(self._wall_time()))
            self._execute_decisions()
            return advisers.choose_trial(search.waiting_trials()) or self._resume_trial(is_idle)
        name, directory = self._name_trial(trial_id, suggested)
        made = events.TrialMade(trial_id, suggested, self._wall_time(), name=name, directory=directory)
        self._recorder.record(made)
        self._execute_decisions()
        waiting = search.waiting_trials()
        return advisers.choose_trial(waiting) if waiting else None

    def _name_trial(self, trial_id: str, encoded: msgspec.Raw) -> tuple[str, str]:
        """Return the name and the directory that the user's functions give a new trial; empty: the default ones."""
        create_name, create_directory = self._spec.create_name, self._spec.create_directory
        if create_name is None and create_directory is None:
            return "", ""
        config = self._search.decode_config(events.decode_raw(encoded))
        trial = Trial(trial_id, config, trainable_name=self._search.trainable)
        if create_name is not None:
            name = create_name(trial)
            if not isinstance(name, str) or not name or not name.isprintable():
                raise bad_value("the name that trial_name_creator returns", "a printable text", name)
            trial = replace(trial, trial_name=name)
        name = trial.trial_name if create_name is not None else ""
        if create_directory is None:
            return name, ""
        directory = create_directory(trial)
        if not isinstance(directory, str) or not is_checkpoint_name(directory):
            raise bad_value("the directory that trial_dirname_creator returns", "a plain directory name", directory)
        if other := self._search.run_names().get(directory):
            raise ValueError(
                f"trial_dirname_creator returned {directory!r} for trial {trial_id}, but trial {other} has it\n\n"
                "hint: include the trial's id, as in lambda trial: f\"lr{trial.config['lr']}_{trial.trial_id}\""
            )
        return name, directory

    def _resume_trial(self, is_idle: bool) -> Trial | None:
        """If nothing runs and nothing can, let the scheduler resume a trial; if it resumes none, resume all."""
        search = self._search
        if not is_idle:
            return None
        waiting = search.waiting_trials()
        if waiting:
            return waiting[0]
        paused = search.trials_with_status("PAUSED")
        if not paused:
            return None
        event = events.SearchIdle(self._wall_time())
        search.apply(event)
        then = self._spec.advisers.handle_event(event, search)
        paused_ids = {trial.trial_id for trial in paused}
        if not any(decision.trial in paused_ids and decision.do != "pause" for decision in then):
            log.warning("%s paused all remaining trials: resuming them", type(self._spec.advisers.scheduler).__name__)
            then += tuple(events.TrialDecision("resume", trial.trial_id, by="search") for trial in paused)
        self._recorder.append(msgspec.structs.replace(event, then=then))
        self._execute_decisions()
        waiting = search.waiting_trials()
        return (self._spec.advisers.choose_trial(waiting) or waiting[0]) if waiting else None


class SearchDriver:
    def __init__(self, spec: SearchSpec, open_search: OpenSearch, environment: RunEnvironment) -> None:
        self.search = Search(
            spec.decode_config,
            lambda run: _locate_run(spec.location, run),
            lambda config: _resolve_resources(spec, config),
        )
        self.outcome = SearchOutcome(self.search)
        self._spec = spec
        self._open_search = open_search
        self._recorder = EventRecorder(self.outcome, spec.advisers, open_search)
        self._run_environment = environment
        self._observers = list(spec.observers)
        self._messages: queue.SimpleQueue[trial_run.TrialRunMessage | None] = queue.SimpleQueue()
        self._live: dict[str, LiveTrial] = {}
        self._trial_source = TrialSource(spec, self.search, self._recorder, self._execute_decisions, self._wall_time)
        self._clones = CloneCoordinator(self.search, self._live, self._recorder.record, self._wall_time)
        self._is_ending = False
        self._stop_deadline: float | None = None
        """When trials that should stop at their next report are stopped without one."""
        self._fail_fast_reason = ""
        self._has_warned = False
        self._checked_at = 0.0
        self._callbacks_saved_at = time.monotonic()
        self._background: StorageThread | None = None
        inbox = RequestInbox(*spec.location.open_mailboxes(), open_search.lease.number, environment.clock)
        self._requests = SearchRequestHandler(inbox, spec.location.name, self._stop_on_request)
        self._recorder.replay()

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do: an earlier driver finished, and no more was requested now."""
        search, spec = self.search, self._spec
        if not search.is_complete or (spec.reset_errored and search.trials_with_status("ERROR")):
            return False
        if search.stopped_because:
            return spec.time_budget_s is None or search.ran_s >= spec.time_budget_s
        return self.num_trials is not None and len(search.trials) >= self.num_trials

    @property
    def num_trials(self) -> int | None:
        """How many trials there will be, if known."""
        if self._spec.num_trials is not None:
            return self._spec.num_trials
        return getattr(self._spec.advisers.searcher, "total_samples", None)

    # Called from signal handlers.

    def request_stop(self, *, now: bool) -> None:
        """Stop at the next report of each trial, or immediately."""
        self.outcome.has_ctrl_c = True
        self.outcome.num_interrupts = max(self.outcome.num_interrupts + 1, 2 if now else 1)
        self._messages.put(None)

    def request_preemption(self, grace_s: float) -> None:
        """Stop because of a preemption notice, within the grace period of the search itself."""
        self.outcome.is_preempted = True
        self._messages.put(None)

    def _stop_on_request(self, now: bool) -> None:
        self.outcome.num_interrupts = max(self.outcome.num_interrupts, 2 if now else 1)
        self._messages.put(None)

    def drive(self) -> SearchOutcome:
        self._background = StorageThread(lambda: None)
        try:
            self._recorder.record(self._spec.make_start_event())
            self._resume_earlier_trials()
            self._execute_decisions()
            while not self._is_over():
                self._check_time_limits()  # First: the time of a resumed search may be up already.
                self._start_trials()
                self._handle_messages()
                self._open_search.lease.raise_if_lost()
                if time.monotonic() - self._callbacks_saved_at >= SAVE_CALLBACKS_EVERY_S:
                    self._save_callbacks()
                self._recorder.sync_if_due(self._background)
                self._requests.tick(self._background.submit)
                self._call_observers("tick", self.search, self._wall_time())
            self._end()
            self._requests.close(self.search)
        except BaseException as error:
            self._requests.close(self.search, error)
            raise
        finally:
            self._stop_runs()
        return self.outcome

    def _resume_earlier_trials(self) -> None:
        """Handle trials of an earlier driver: retry failed ones if requested, or leave unfinished ones as they are."""
        now = self._wall_time()
        for trial in list(self.search.trials.values()):
            if trial.status == "ERROR" and self._spec.reset_errored:
                record = self.search.trial_records[trial.trial_id]
                anew = self._spec.reset_errored == "restart"
                run = self.search.next_run_name(trial.trial_id) if anew else record.run
                self._recorder.record(events.TrialReset(trial.trial_id, run, now))
            elif not trial.is_over and not self._spec.resume_unfinished:
                self._recorder.record(events.TrialEnded(trial.trial_id, "stopped", now, "not resumed", by="search"))

    def _execute_decisions(self) -> None:
        while True:
            for event in self._recorder.take_unexecuted():
                for decision in getattr(event, "then", ()):
                    self._stop_if_live(decision)
                self._call_observers("on_event", event, self.search)
            for decision in self.search.ready_decisions():
                if decision.trial not in self._clones.awaiting_donor:
                    self._settle_trial(decision)
            if not self._recorder.has_unexecuted:
                return

    def _stop_if_live(self, decision: events.TrialDecision) -> None:
        live = self._live.get(decision.trial)
        if live is not None and decision.do != "resume" and not live.is_stop_requested:
            live.is_stop_requested = True
            live.run.stop()

    def _settle_trial(self, decision: events.TrialDecision) -> None:
        """Stop, pause or clone a trial that has no active run."""
        if decision.do == "exploit":
            self._clones.start_clone(decision)
        else:
            ending: events.Ending = "stopped" if decision.do == "stop" else "paused"
            self._recorder.record(
                events.TrialEnded(decision.trial, ending, self._wall_time(), decision.why, decision.by)
            )

    def _start_trials(self) -> None:
        """Start trials while there is capacity; create new ones if none is waiting."""
        spec, search = self._spec, self.search
        while not self._is_ending and (spec.max_concurrent is None or len(self._live) < spec.max_concurrent):
            trial = spec.advisers.choose_trial(search.waiting_trials())
            if trial is not None and trial.status == Trial.PAUSED:
                self._resume_chosen(trial)
                continue
            trial = trial or self._trial_source.make_trial(is_idle=not self._live)
            if trial is None:
                return
            needs = self._resolve_needs(trial)
            if needs is None:
                continue
            allocation = spec.capacity.allocate(needs)
            if allocation is None:
                return
            self._start_trial(trial, allocation)

    def _resume_chosen(self, trial: Trial) -> None:
        resume = events.TrialDecision("resume", trial.trial_id)
        event = events.TrialChosen(trial.trial_id, self._wall_time(), (resume,))
        self.search.apply(event)
        self._recorder.append(event)
        self._execute_decisions()

    def _resolve_needs(self, trial: Trial) -> TrialNeeds | None:
        """Return what a trial needs; if that is never available, fail the trial, or raise if none has started yet."""
        try:
            record = self.search.trial_records[trial.trial_id]
            needs = self._spec.resolve_needs(trial.config, record.resources)
            refusal = self._spec.capacity.find_refusal(needs)
            problem: Exception | None = ValueError(refusal) if refusal is not None else None
        except Exception as raised:  # noqa: BLE001
            problem, refusal = raised, str(raised)
        if problem is None:
            return needs
        if not any(record.num_starts for record in self.search.trial_records.values()):
            raise problem
        self.outcome.errors[trial.trial_id] = problem
        why = trial_run.format_error_line(problem)
        self._recorder.record(events.TrialEnded(trial.trial_id, "failed", self._wall_time(), why))
        self._execute_decisions()
        return None

    def _start_trial(self, trial: Trial, allocation: Any) -> None:
        spec, record = self._spec, self.search.trial_records[trial.trial_id]
        self._recorder.record(events.TrialBegan(trial.trial_id, record.run, self._wall_time()))
        self._execute_decisions()
        trial = self.search.trials[trial.trial_id]
        run_spec = TrialRunSpec(record.run, record.purpose, None, self.search.pinned_seqs(record.run), record.resources)
        saved = record.initial
        run = trial_run.TrialRun(
            trial.trial_id,
            run_spec.run,
            lambda hooks: spec.run_trial(
                trial, _with_initial_checkpoint(run_spec, saved, spec.location), allocation, hooks
            ),
            self._messages.put,
            last_known_seq=record.last_seq,
            waits_in_reports=spec.waits_in_reports,
            waits_for_checkpoints=spec.advisers.scheduler.waits_for_checkpoints,
            is_retried=record.is_retried,
        )
        self._live[trial.trial_id] = LiveTrial(run, allocation, frozenset(run_spec.pinned_seqs))
        run.start()

    def _handle_messages(self) -> None:
        try:
            messages = [self._messages.get(timeout=TICK_S)]
            while not self._messages.empty():
                messages.append(self._messages.get())
        except queue.Empty:
            return
        proceeding: list[trial_run.TrialReportMessage] = []
        for message in messages:
            match message:
                case trial_run.TrialReportMessage(event=event):
                    if self.search.is_new_report(event.trial, event.run, event.seq):
                        self._recorder.record(event)
                        self._execute_decisions()  # Now: observers must see the result of this report, not a later one.
                    if self.search.trial_records[event.trial].pending_decision is None:
                        proceeding.append(message)
                case events.TrialSaved(trial=trial_id, run=run, seq=seq):
                    saved = self.search.trials[trial_id].checkpoint
                    if saved is None or (saved.run, saved.seq) != (run, seq):
                        initial = self.search.trial_records[trial_id].initial
                        self._recorder.record(message)
                        if initial is not None:
                            self._clones.release_donor_pin(initial)
                case events.TrialRetried():
                    self._recorder.record(message)
                case trial_run.TrialPinsMessage(trial_id=trial_id, seqs=seqs):
                    self._clones.on_pins_confirmed(trial_id, seqs)
                case trial_run.TrialEndMessage():
                    self._on_run_end(message)
        if None in messages:
            self._on_interrupt()
        if proceeding:
            self._stop_if_advised()
        self._execute_decisions()
        for message in proceeding:
            live = self._live.get(message.event.trial)
            if live is not None and not live.is_stop_requested:
                save = self._spec.take_save_request(message.event.trial, message.event.seq)
                live.run.release_report(message.attempt, message.event.seq, save=save)

    def _on_run_end(self, message: trial_run.TrialEndMessage) -> None:
        live = self._live.pop(message.trial_id)
        live.run.join()
        self._clones.on_pins_confirmed(message.trial_id, ())
        self._spec.capacity.release(live.allocation)
        pending = self.search.trial_records[message.trial_id].pending_decision
        at, trial_id = message.at, message.trial_id
        if message.error is not None and self._spec.capacity.is_capacity_loss(message.error):
            # Not the trial's fault: it resumes with the next driver, like all others.
            self._recorder.record(events.TrialEnded(trial_id, "interrupted", at))
            self._open_search.journal.flush()
            raise message.error
        if message.ending == "not its own":
            run = self.search.next_run_name(trial_id)
            self._recorder.record(events.TrialReset(trial_id, run, at, why=str(message.error)))
        elif message.ending == "failed" and (pending is None or pending.do != "stop"):
            assert message.error is not None
            self.outcome.errors[trial_id] = message.error
            self._recorder.record(events.TrialEnded(trial_id, "failed", at, trial_run.format_error_line(message.error)))
            if self._spec.fail_fast and not self._is_ending:
                self._fail_fast_reason = f"trial {trial_id} failed and fail_fast is set"
                self._interrupt_all(now=False)
        elif message.ending == "returned":
            self._check_metric(trial_id)
            self._recorder.record(events.TrialEnded(trial_id, "returned", at))
        elif pending is None and live.run.is_stopped_by_person and not self._is_ending:
            self._recorder.record(events.TrialEnded(trial_id, "stopped", at, "stopped by a person", by="search"))
        elif pending is None or pending.do == "exploit":
            self._recorder.record(events.TrialEnded(trial_id, "interrupted", at))
        elif pending.do == "stop":
            self._recorder.record(events.TrialEnded(trial_id, "stopped", at, pending.why, by=pending.by))
        else:
            self._recorder.record(events.TrialEnded(trial_id, "paused", at, pending.why, by=pending.by))
            self._warn_of_lost_steps(trial_id)

    def _warn_of_lost_steps(self, trial_id: str) -> None:
        if self.search.trials[trial_id].checkpoint is None and not self._has_warned:
            self._has_warned = True
            self._spec.say(
                f"trial {trial_id} is paused without a checkpoint and will start over. "
                "Use tune.report(metrics, checkpoint=...) so that trials can resume"
            )

    def _check_metric(self, trial_id: str) -> None:
        """Record a trial that ended with reports but never with the metric that searcher or scheduler needs."""
        search = self.search
        if search.metric is None or search.trial_records[trial_id].has_metric or self.outcome.trial_without_metric:
            return
        if search.trials[trial_id].last_result is None:
            return
        advisers = self._spec.advisers
        if advisers.searcher.needs_metric or advisers.scheduler.metric is not None:
            self.outcome.trial_without_metric = trial_id

    def _is_over(self) -> bool:
        if self.outcome.trial_without_metric and not self._is_ending:
            self._interrupt_all(now=True)
        if self._live:
            return False
        return self._is_ending or self._is_exhausted()

    def _is_exhausted(self) -> bool:
        return self.search.is_exhausted and all(trial.is_over for trial in self.search.trials.values())

    def _on_interrupt(self) -> None:
        if self.outcome.is_preempted and not self._is_ending:
            self._is_ending = True
            self._spec.say(
                f"preemption notice: trials stop at their next report (grace period: {self._spec.grace_s:.0f} s)"
            )
            for live in self._live.values():
                live.run.preempt(self._spec.grace_s)
        elif self.outcome.num_interrupts:
            if self.outcome.num_interrupts == 1 and self._live:
                self._spec.say("trials stop at their next report; press Ctrl-C again to stop now")
            self._interrupt_all(now=self.outcome.num_interrupts > 1)

    def _interrupt_all(self, *, now: bool) -> None:
        self._is_ending = True
        for live in self._live.values():
            live.run.stop(now=now)

    def _check_time_limits(self) -> None:
        now = time.monotonic()
        if now - self._checked_at < TICK_S:
            return
        self._checked_at = now
        self._spec.capacity.refresh()
        if self._stop_deadline is not None and now >= self._stop_deadline:
            self._stop_deadline = None
            self._interrupt_all(now=True)
        budget_s = self._spec.time_budget_s
        if self.search.is_exhausted and not self._live:
            return
        if budget_s is not None and self.search.elapsed_s(self._wall_time()) >= budget_s:
            self._stop_all(f"time_budget_s={budget_s:g} is over")
        else:
            self._stop_if_advised()

    def _stop_if_advised(self) -> None:
        if why := self._spec.advisers.reason_to_end():
            self._stop_all(why)

    def _stop_all(self, why: str) -> None:
        """Start no more trials. Unfinished ones end at their next report, or without one if it takes too long."""
        unfinished = [trial.trial_id for trial in self.search.trials.values() if not trial.is_over]
        pending = [trial_id for trial_id in unfinished if self.search.trial_records[trial_id].pending_decision is None]
        if self.search.is_exhausted and not pending:
            return
        then = tuple(events.TrialDecision("stop", trial, why, by="search") for trial in pending)
        event = events.NoMoreTrials(self._wall_time(), then, why)
        self.search.apply(event)
        self._recorder.append(event)
        self._execute_decisions()
        self._stop_deadline = time.monotonic() + self._spec.grace_s

    def _save_callbacks(self) -> None:
        self._callbacks_saved_at = time.monotonic()
        if (saved := self._spec.save_callbacks(self._wall_time())) is not None:
            self._recorder.record(saved)
            self._execute_decisions()

    def _end(self) -> None:
        why = ""
        if not (complete := self._is_exhausted()):
            why = self._fail_fast_reason or ("preempted" if self.outcome.is_preempted else "interrupted")
        self._save_callbacks()
        self._recorder.record(events.SearchEnded(self._wall_time(), why, complete))
        self._execute_decisions()
        self._open_search.journal.sync()
        self._open_search.lease.check()

    def _stop_runs(self) -> None:
        """Stop every run: nothing of a trial may outlive the search."""
        for live in self._live.values():
            live.run.stop(now=True)
        for live in self._live.values():
            live.run.join()
        if self._background is not None:
            self._background.close()

    def _call_observers(self, method: Literal["on_event", "tick"], *args: Any) -> None:
        for observer in list(self._observers):
            try:
                getattr(observer, method)(*args)
            except Exception:
                self._observers.remove(observer)
                log.exception("observer %s raised and is disabled", type(observer).__name__)

    def _wall_time(self) -> float:
        return self._run_environment.clock.wall()


def _resolve_resources(spec: SearchSpec, config: Mapping[str, Any]) -> PlacementGroupFactory | None:
    try:
        return to_placement_group(spec.resolve_needs(config, None))
    except Exception:  # noqa: BLE001
        return None  # It is raised again when the trial is to start.


def _locate_run(location: RunLocation, run: str) -> str:
    if location.address is None:
        return str(trial_run_location(location, run).layout.root)
    # Not the run's own: a new run in a store empties that when it starts.
    return str(location.layout.artifacts / run)


def _with_initial_checkpoint(
    run_spec: TrialRunSpec, saved: TrialCheckpoint | None, location: RunLocation
) -> TrialRunSpec:
    """Add the checkpoint the run starts from; by reference if it was committed."""
    if saved is None:
        return run_spec
    store = trial_run_location(location, saved.run).open_run_store_for_reading()
    record = next((record for record in load_history(store)[0].checkpoints if record.seq == saved.seq), None)
    if record is not None:
        return replace(run_spec, initial=Checkpoint(*store.locate_checkpoint(record)))
    if load_history(trial_run_location(location, run_spec.run).open_run_store_for_reading())[0].latest is not None:
        return run_spec  # It already has its own checkpoint, which a lost driver could not record.
    raise StorageError(f"cannot start {run_spec.run}: {saved.name} in {store.uri} no longer exists")
