"""The loop of a search: hear what trials tell, write down what follows, start and stop runs accordingly.

All that is decided is decided here, in one thread. An event and what was decided upon it are in the journal before
anything is done about it.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from paceline._control.background import Background
from paceline._control.reception import Reception
from paceline._control.recover import history_of
from paceline._core.errors import StorageError
from paceline._storage.home import Home
from paceline.train.checkpoint import Checkpoint
from paceline.train.drive import Seams
from paceline.tune.drive.book import Held, home_of_run
from paceline.tune.drive.clones import Clones, Live
from paceline.tune.drive.events import (
    Act,
    Event,
    NoMoreTrials,
    SearchEnded,
    SearchIdle,
    TrialBegan,
    TrialEnded,
    TrialMade,
    TrialReported,
    TrialReset,
    TrialSaved,
)
from paceline.tune.drive.plan import Life, Outcome, Plan, SearchObserver
from paceline.tune.drive.requests import SearchRequests
from paceline.tune.drive.runner import EndTold, PinsTold, ReportTold, SaveTold, Told, TrialRun, error_line
from paceline.tune.drive.state import Search, driven_s, run_name
from paceline.tune.search.searcher import Searcher
from paceline.tune.trainables.planned import TrialNeeds
from paceline.tune.trial import Saved, Trial

log = logging.getLogger("paceline")

TICK_S = 0.1
SYNC_EVERY_S = 1.0


class SearchDriver:
    def __init__(self, plan: Plan, held: Held, seams: Seams) -> None:
        self.search = Search(plan.restored)
        self.outcome = Outcome(self.search)
        self._plan = plan
        self._held = held
        self._seams = seams
        self._observers = list(plan.observers)
        self._told: queue.SimpleQueue[Told | None] = queue.SimpleQueue()
        self._live: dict[str, Live] = {}
        self._clones = Clones(self.search, self._live, self._happen, self._wall)
        self._news: list[Event] = []
        self._is_ending = False
        self._patience_ends: float | None = None
        """When trials that were to stop at their next report are stopped without one."""
        self._failed_fast = ""
        self._has_warned = False
        self._synced_at = time.monotonic()
        self._looked_at = 0.0
        self._background: Background | None = None
        reception = Reception(*plan.home.mailboxes(), held.lease.number, seams.clock)
        self._requests = SearchRequests(reception, plan.home.name, self._stop_as_asked)
        self._replay()

    @property
    def is_done(self) -> bool:
        """Nothing is left to do: an earlier driver came to the end, and no more is asked for now."""
        search, plan = self.search, self._plan
        if not search.is_complete or (plan.reset_errored and search.of_status("ERROR")):
            return False
        if search.stopped_because:
            budget_s = plan.time_budget_s
            return budget_s is None or search.ran_s >= budget_s
        return self.num_trials is not None and len(search.trials) >= self.num_trials

    @property
    def num_trials(self) -> int | None:
        """How many trials there will be, where that is known."""
        if self._plan.num_trials is not None:
            return self._plan.num_trials
        total: int | None = getattr(self._plan.advice.searcher, "total_samples", None)
        return total

    # Asked by signal handlers.

    def request_stop(self, *, now: bool) -> None:
        """At the next report of each trial, or at once."""
        self.outcome.interrupted = max(self.outcome.interrupted + 1, 2 if now else 1)
        self._told.put(None)

    def _stop_as_asked(self, now: bool) -> None:
        """By a request to the search."""
        self.outcome.interrupted = max(self.outcome.interrupted, 2 if now else 1)
        self._told.put(None)

    def request_preemption(self) -> None:
        self.outcome.preempted = True
        self._told.put(None)

    def _replay(self) -> None:
        """Tell the search, and those who advise it, what happened under earlier drivers."""
        if self._held.past:
            self._plan.advice.continued(driven_s(self._held.past))
        for event in self._held.past:
            self.search.apply(event)
            self._plan.advice.heard(event, self.search, again=True)
            for act in getattr(event, "then", ()):
                self.search.take(act)

    def drive(self) -> Outcome:
        self._background = Background(lambda: None)
        try:
            self._happen(self._plan.started())
            self._take_up()
            self._carry_out()
            while not self._is_over():
                self._look_at_the_time()  # First: of a search that is continued it may be over already.
                self._fill()
                self._hear()
                self._held.lease.raise_if_lost()
                self._keep_journal()
                self._requests.tick(self._background.submit)
                self._tick()
            self._end()
            self._requests.close(self.search)
        except BaseException as error:
            self._requests.close(self.search, error)
            raise
        finally:
            self._leave()
        return self.outcome

    def _take_up(self) -> None:
        """What an earlier driver left: trials that had failed may be run again, and unfinished ones be left so."""
        now = self._wall()
        for trial in list(self.search.trials.values()):
            if trial.status == "ERROR" and self._plan.reset_errored:
                standing = self.search.standing[trial.trial_id]
                anew = self._plan.reset_errored == "restart"
                run = run_name(trial.trial_id, standing.num_lives) if anew else standing.run
                self._happen(TrialReset(trial.trial_id, run, now))
            elif not trial.is_over and not self._plan.resume_unfinished:
                self._happen(TrialEnded(trial.trial_id, "stopped", now, "not resumed", by="search"))

    # Events.

    def _happen(self, event: Event) -> None:
        """Let an event take effect, ask what follows from it, and write both down."""
        self.search.apply(event)
        decided = self._plan.advice.heard(event, self.search)
        if decided:
            event = msgspec.structs.replace(event, then=decided)
        self._write(event)

    def _write(self, event: Event) -> None:
        self._held.journal.append(event)
        self._news.append(event)
        for act in getattr(event, "then", ()):
            self.search.take(act)

    def _carry_out(self) -> None:
        """Do what was decided, once it is written down, and tell those who watch."""
        while True:
            self._held.journal.flush()
            news, self._news = self._news, []
            for event in news:
                for act in getattr(event, "then", ()):
                    self._stop_if_live(act)
                self._tell(event)
            settled = [act for act in self.search.settled() if not self._clones.are_awaited_by(act.trial)]
            if not settled:
                return
            for act in settled:
                self._settle(act)
            if not self._news:
                return

    def _stop_if_live(self, act: Act) -> None:
        live = self._live.get(act.trial)
        if live is not None and act.do != "resume" and not live.asked_to_stop:
            live.asked_to_stop = True
            live.run.stop()

    def _settle(self, act: Act) -> None:
        """A trial whose run is not under way is to stop, pause or be cloned."""
        trial_id, now = act.trial, self._wall()
        if act.do == "stop":
            self._happen(TrialEnded(trial_id, "stopped", now, act.why, by=act.by))
        elif act.do in ("pause", "resume"):
            self._happen(TrialEnded(trial_id, "paused", now, act.why, by=act.by))
        else:
            self._clones.begin(act)

    # Trials.

    def _fill(self) -> None:
        """Start trials for as long as there is room, and make new ones where none waits."""
        plan, search = self._plan, self.search
        while not self._is_ending and (plan.max_concurrent is None or len(self._live) < plan.max_concurrent):
            trial = plan.advice.chosen(search.waiting())
            if trial is None and not (trial := self._made()):
                return
            needs = self._needs(trial)
            if needs is None:
                continue
            part = plan.room.take(needs)
            if part is None:
                return
            self._begin(trial, part)

    def _made(self) -> Trial | None:
        """A new trial, if the searcher has one now; one that waits already is not made again."""
        search, advice = self.search, self._plan.advice
        if search.is_exhausted:
            return self._stranded()
        number = len(search.trials)
        trial_id = f"{number:05d}"
        suggested: msgspec.Raw | str | None = Searcher.FINISHED
        if self._plan.num_trials is None or number < self._plan.num_trials:
            suggested = advice.suggested(trial_id)
        if suggested is None:
            if not self._live and not search.waiting() and not search.of_status("PAUSED"):
                name = type(advice.searcher).__name__
                log.warning("%s suggests nothing though no trial runs: the search ends", name)
                suggested = Searcher.FINISHED
            else:
                return self._stranded()
        if isinstance(suggested, str):
            self._happen(NoMoreTrials(self._wall()))
            self._carry_out()
            return advice.chosen(search.waiting()) or self._stranded()
        self._happen(TrialMade(trial_id, suggested, self._wall()))
        self._carry_out()
        waiting = search.waiting()
        return advice.chosen(waiting) if waiting else None

    def _stranded(self) -> Trial | None:
        """Where nothing runs and nothing could, the scheduler has to let something go on, or else all does."""
        if self._live:
            return None
        waiting = self.search.waiting()
        if waiting:
            return waiting[0]
        paused = self.search.of_status("PAUSED")
        if not paused:
            return None
        event = SearchIdle(self._wall())
        self.search.apply(event)
        then = self._plan.advice.heard(event, self.search)
        left = {trial.trial_id for trial in paused}
        if not any(act.trial in left and act.do != "pause" for act in then):
            name = type(self._plan.advice.scheduler).__name__
            log.warning("%s has paused every trial that is left; all go on", name)
            then += tuple(Act("resume", trial.trial_id, by="search") for trial in paused)
        self._write(msgspec.structs.replace(event, then=then))
        self._carry_out()
        waiting = self.search.waiting()
        return (self._plan.advice.chosen(waiting) or waiting[0]) if waiting else None

    def _needs(self, trial: Trial) -> TrialNeeds | None:
        """What a trial needs; None, and it has failed, where that can never be had."""
        try:
            needs = self._plan.needs(trial.config)
            refusal = self._plan.room.refusal(needs)
            problem: Exception | None = ValueError(refusal) if refusal is not None else None
        except Exception as raised:  # noqa: BLE001  by what the user gave to say it
            problem, refusal = raised, str(raised)
        if problem is None:
            return needs
        if not any(standing.num_begun for standing in self.search.standing.values()):
            raise problem
        self.outcome.errors[trial.trial_id] = problem
        self._happen(TrialEnded(trial.trial_id, "failed", self._wall(), error_line(problem)))
        self._carry_out()
        return None

    def _begin(self, trial: Trial, part: Any) -> None:
        plan, standing = self._plan, self.search.standing[trial.trial_id]
        self._happen(TrialBegan(trial.trial_id, standing.run, self._wall()))
        self._carry_out()
        trial = self.search.trials[trial.trial_id]
        life = Life(standing.run, standing.purpose, None, self.search.pinned(standing.run))
        saved = standing.initial
        run = TrialRun(
            trial.trial_id,
            life.run,
            lambda seams: plan.play(trial, _from(life, saved, plan.home), part, seams),
            self._told.put,
            seen=standing.seen,
            waits_in_reports=plan.advice.is_waited_for,
            waits_for_checkpoints=plan.advice.scheduler.waits_for_checkpoints,
            is_retried=standing.is_retried,
        )
        self._live[trial.trial_id] = Live(run, part, frozenset(life.pinned))
        run.start(self._seams)

    # What trials tell.

    def _hear(self) -> None:
        """Wait for something to be told, and take all that was."""
        try:
            said = [self._told.get(timeout=TICK_S)]
            while not self._told.empty():
                said.append(self._told.get())
        except queue.Empty:
            return
        proceeding: list[ReportTold] = []
        for told in said:
            match told:
                case ReportTold():
                    if self._reported(told):
                        proceeding.append(told)
                case SaveTold(trial_id=trial_id, run=run, seq=seq, name=name, at=at):
                    saved = self.search.trials[trial_id].checkpoint
                    if saved is None or (saved.run, saved.seq) != (run, seq):
                        initial = self.search.standing[trial_id].initial
                        self._happen(TrialSaved(trial_id, run, seq, name, at))
                        if initial is not None:
                            self._clones.saved(initial)
                case PinsTold():
                    self._clones.told(told)
                case EndTold():
                    self._ended(told)
        if None in said:
            self._interrupted()
        if proceeding:
            self._end_if_asked()
        self._carry_out()
        for told in proceeding:
            live = self._live.get(told.trial_id)
            if live is not None and not live.asked_to_stop:
                live.run.proceed(told.attempt, told.seq)

    def _reported(self, told: ReportTold) -> bool:
        """Whether it may go on."""
        if self.search.is_new(told.trial_id, told.run, told.seq):
            self._happen(TrialReported(told.trial_id, told.run, told.seq, told.metrics, told.at))
        return self.search.standing[told.trial_id].leaving is None

    def _ended(self, told: EndTold) -> None:
        live = self._live.pop(told.trial_id)
        live.run.join()
        self._clones.ended(told.trial_id, told.run)
        self._plan.room.free(live.part)
        leaving = self.search.standing[told.trial_id].leaving
        at, trial_id = told.at, told.trial_id
        if told.error is not None and self._plan.room.is_lost_by(told.error):
            # The trial is not to blame: it goes on with the next driver, and so do all others.
            self._happen(TrialEnded(trial_id, "interrupted", at))
            self._held.journal.flush()
            raise told.error
        if told.ending == "not its own":
            run = run_name(trial_id, self.search.standing[trial_id].num_lives)
            self._happen(TrialReset(trial_id, run, at, why=str(told.error)))
        elif told.ending == "failed" and (leaving is None or leaving.do != "stop"):
            assert told.error is not None
            self.outcome.errors[trial_id] = told.error
            self._happen(TrialEnded(trial_id, "failed", at, error_line(told.error)))
            if self._plan.fail_fast and not self._is_ending:
                self._failed_fast = f"trial {trial_id} failed, and FailureConfig says fail_fast"
                self._interrupt_all(now=False)
        elif told.ending == "returned":
            self._check_metric(trial_id)
            self._happen(TrialEnded(trial_id, "returned", at))
        elif leaving is None and live.run.is_stopped_by_person and not self._is_ending:
            self._happen(TrialEnded(trial_id, "stopped", at, "stopped by a person", by="search"))
        elif leaving is None or leaving.do == "exploit":
            self._happen(TrialEnded(trial_id, "interrupted", at))
        elif leaving.do == "stop":
            self._happen(TrialEnded(trial_id, "stopped", at, leaving.why, by=leaving.by))
        else:
            self._happen(TrialEnded(trial_id, "paused", at, leaving.why, by=leaving.by))
            self._warn_of_lost_steps(trial_id)

    def _warn_of_lost_steps(self, trial_id: str) -> None:
        if self.search.trials[trial_id].checkpoint is None and not self._has_warned:
            self._has_warned = True
            self._plan.say(
                f"trial {trial_id} is paused and has no checkpoint: it will begin anew. "
                "With tune.report(metrics, checkpoint=...) trials go on where they were"
            )

    def _check_metric(self, trial_id: str) -> None:
        """Whoever compares trials has to be told of it; a trial that reported nothing at all has only ended."""
        search = self.search
        if search.metric is None or search.standing[trial_id].has_metric or self.outcome.failed_metric:
            return
        if search.trials[trial_id].last_result is None:
            return
        advice = self._plan.advice
        if advice.searcher.needs_metric or advice.scheduler.metric is not None:
            self.outcome.failed_metric = trial_id

    # The end.

    def _is_over(self) -> bool:
        if self.outcome.failed_metric and not self._is_ending:
            self._interrupt_all(now=True)
        if self._live:
            return False
        return self._is_ending or (self.search.is_exhausted and all(t.is_over for t in self.search.trials.values()))

    def _interrupted(self) -> None:
        if self.outcome.preempted and not self._is_ending:
            self._is_ending = True
            self._plan.say(
                "this machine is about to be taken away: trials stop at their next report, "
                f"for which there are {self._plan.grace_s:.0f} s"
            )
            for live in self._live.values():
                live.run.preempt(self._plan.grace_s)
        elif self.outcome.interrupted:
            if self.outcome.interrupted == 1 and self._live:
                self._plan.say("trials stop at their next report; press Ctrl-C again to stop now")
            self._interrupt_all(now=self.outcome.interrupted > 1)

    def _interrupt_all(self, *, now: bool) -> None:
        self._is_ending = True
        for live in self._live.values():
            live.run.stop(now=now)

    def _look_at_the_time(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < TICK_S:
            return
        self._looked_at = now
        self._plan.room.refresh()
        if self._patience_ends is not None and now >= self._patience_ends:
            self._patience_ends = None
            self._interrupt_all(now=True)
        budget_s = self._plan.time_budget_s
        if self.search.is_exhausted and not self._live:
            return
        if budget_s is not None and self.search.elapsed_s(self._wall()) >= budget_s:
            self._stop_all(f"time_budget_s={budget_s:g} is over")
        else:
            self._end_if_asked()

    def _end_if_asked(self) -> None:
        if why := self._plan.advice.ends_search():
            self._stop_all(why)

    def _stop_all(self, why: str) -> None:
        """No trial is begun any more. Those that are not over end at their next report, or, if that is long in coming,
        without."""
        unfinished = [trial.trial_id for trial in self.search.trials.values() if not trial.is_over]
        pending = [trial_id for trial_id in unfinished if self.search.standing[trial_id].leaving is None]
        if self.search.is_exhausted and not pending:
            return
        then = tuple(Act("stop", trial, why, by="search") for trial in pending)
        event = NoMoreTrials(self._wall(), then, why)
        self.search.apply(event)
        self._write(event)
        self._carry_out()
        self._patience_ends = time.monotonic() + self._plan.grace_s

    def _end(self) -> None:
        complete = self.search.is_exhausted and all(trial.is_over for trial in self.search.trials.values())
        why = "" if complete else self._failed_fast or ("preempted" if self.outcome.preempted else "interrupted")
        self._happen(SearchEnded(self._wall(), why, complete))
        self._carry_out()
        self._held.journal.sync()
        self._held.lease.check()

    def _leave(self) -> None:
        """Whatever happened, nothing of a trial outlives the search."""
        for live in self._live.values():
            live.run.stop(now=True)
        for live in self._live.values():
            live.run.join()
        if self._background is not None:
            self._background.close()

    # Around it.

    def _keep_journal(self) -> None:
        assert self._background is not None
        self._background.taken()  # Raises what broke there.
        now = time.monotonic()
        if self._held.journal.unsynced and now - self._synced_at >= SYNC_EVERY_S:
            self._synced_at = now
            self._held.journal.unsynced = False
            self._background.submit(self._kept)

    def _kept(self) -> None:
        self._held.journal.sync_written()
        self._held.depot.ship_journal()

    def _tell(self, event: Event) -> None:
        self._each(lambda observer: observer.saw(event, self.search))

    def _tick(self) -> None:
        now = self._wall()
        self._each(lambda observer: observer.tick(self.search, now))

    def _each(self, tell: Callable[[SearchObserver], None]) -> None:
        for observer in list(self._observers):
            try:
                tell(observer)
            except Exception:
                self._observers.remove(observer)
                log.exception("%s raised and is dropped; the search goes on", type(observer).__name__)

    def _wall(self) -> float:
        return self._seams.clock.wall()


def _from(life: Life, saved: Saved | None, home: Home) -> Life:
    """With the checkpoint that it begins from: by reference, where that was committed."""
    if saved is None:
        return life
    depot = home_of_run(home, saved.run).depot_to_read()
    record = next((record for record in history_of(depot)[0].checkpoints if record.seq == saved.seq), None)
    if record is not None:
        return replace(life, initial=Checkpoint(*depot.place(record)))
    if history_of(home_of_run(home, life.run).depot_to_read())[0].latest is not None:
        return life  # It has one of its own by now, which a driver that was lost could not tell.
    raise StorageError(f"{depot.uri}: {saved.name}, from which {life.run} is to begin, is gone")
