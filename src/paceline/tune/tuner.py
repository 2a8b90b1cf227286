"""Tuner: keeps the arguments, makes a plan of them, has the search driven, returns a ResultGrid."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import random
import socket
from collections.abc import Mapping
from typing import Any

from paceline._core import settings
from paceline._core.errors import PreemptionError
from paceline._engine.local.launch import prewarm
from paceline._storage.home import Home, joined
from paceline.train.config import RunConfig, as_config
from paceline.train.drive import Seams, SignalInterrupts, played
from paceline.train.result import Result
from paceline.train.trainer import DataParallelTrainer
from paceline.tune.config import RunConfig as TuneRunConfig
from paceline.tune.drive import book
from paceline.tune.drive.advice import Advice
from paceline.tune.drive.book import Held
from paceline.tune.drive.callbacks import Callbacks
from paceline.tune.drive.described import Before, check_same, described
from paceline.tune.drive.events import SearchStarted, raw, unraw
from paceline.tune.drive.loop import SearchDriver
from paceline.tune.drive.plan import Life, Outcome, Plan
from paceline.tune.drive.room import SearchRoom, TrialPart, room_of
from paceline.tune.drive.runner import FailedBefore
from paceline.tune.drive.state import Search
from paceline.tune.history import FILLED, search_told_by
from paceline.tune.result_grid import ResultGrid
from paceline.tune.schedulers.fifo import FIFOScheduler
from paceline.tune.schedulers.scheduler import TrialScheduler
from paceline.tune.search.basic import BasicVariantGenerator
from paceline.tune.search.searcher import Searcher
from paceline.tune.space.space import Space
from paceline.tune.stoppers import stopper_of
from paceline.tune.stoppers.stopper import Stopper
from paceline.tune.terminal import SearchTerminal, TrialTerminal, terminal_of
from paceline.tune.trainables.ahead import used_by
from paceline.tune.trainables.plans import planned
from paceline.tune.trial import Trial
from paceline.tune.tune_config import TuneConfig

PRELOADED = ("paceline.tune.session", "paceline.tune.trainables.work", "paceline.train.trainer")
"""What workers of trials find imported: each of them would take a quarter of a second for it."""


class Tuner:
    """Searches for the best of many runs.

        def train_func(config):
            for step in range(10):
                tune.report({"loss": (config["lr"] - 0.1) ** 2 / (step + 1)})

        tuner = tune.Tuner(
            train_func,
            param_space={"lr": tune.loguniform(1e-4, 1)},
            tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=20),
        )
        best = tuner.fit().get_best_result()

    `trainable` is a function of a configuration, a `tune.Trainable` class, or a trainer, into which a `param_space`
    such as `{"train_loop_config": {...}, "scaling_config": {...}}` is merged. `run_config` says what the search is
    called and where it is kept; by default it is the trainer's own. A script that runs again with the same name and
    path continues the search: finished trials are kept, the others go on from their last checkpoints.
    """

    _seams: Seams = Seams()

    def __init__(
        self,
        trainable: Any = None,
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | Mapping[str, Any] | None = None,
        run_config: RunConfig | Mapping[str, Any] | None = None,
    ) -> None:
        if trainable is None:
            raise ValueError(
                "Tuner needs a trainable: a function of a configuration, a tune.Trainable class or a trainer"
            )
        self.trainable = trainable
        self.tune_config: TuneConfig = as_config(TuneConfig, tune_config, "tune_config")
        self.run_config = _run_config_of(run_config, trainable)
        if self.run_config.detached:
            raise ValueError(
                "RunConfig(detached=True) is for a single run: the driver of a search is this script\n\n"
                "hint: submit the script itself as a job of the cluster"
            )
        self._planned = planned(trainable)
        self._planned.check(self.run_config)
        self.param_space: Mapping[str, Any] = param_space if param_space is not None else {}
        self._space = Space(param_space)
        stop = getattr(self.run_config, "stop", None)
        self._stopper = stopper_of(stop) if stop is not None else None
        self._searcher: Searcher = self.tune_config.search_alg or BasicVariantGenerator()
        self._scheduler: TrialScheduler = self.tune_config.scheduler or FIFOScheduler()
        self._unused: tuple[Searcher, TrialScheduler, Stopper | None] | None = None
        self._take_up = TakeUp()
        self._grid: ResultGrid | None = None
        assert self.run_config.name is not None
        self._callbacks = Callbacks(self.run_config.callbacks, self.run_config.name)
        _check_metric(self.tune_config, self._searcher, self._scheduler)

    def fit(self) -> ResultGrid:
        """Search until no trial is left, the time is over, or a stopper ends it.

        A failed trial does not fail the search: its error is in the result. Ctrl-C once stops every trial at its next
        report and returns what there is; twice stops now. The same script continues the search.
        """
        home = self.run_config.home
        prewarm(*PRELOADED, *used_by(getattr(self.trainable, "trainable", self.trainable)))
        verbose = getattr(self.run_config, "verbose", None)
        verbosity = min(verbose, 2) if verbose is not None else settings.load().verbosity
        terminal = terminal_of(home.name, home.uri, verbosity)
        try:
            with book.opened(home, self._seams, terminal.say) as held:
                outcome = self._driven(held, terminal)
        finally:
            terminal.close()
        self._grid = self._results(outcome.errors)
        return self._ended(outcome, self._grid)

    def get_results(self) -> ResultGrid:
        """What there is so far of the search, read from where it is kept."""
        if self._grid is None:
            self._grid = self._results()
        return self._grid

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> bool:
        """Whether a search lies at this path."""
        return book.is_search(Home.of_path(os.fspath(path), storage_filesystem))

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        trainable: Any = None,
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        param_space: Mapping[str, Any] | None = None,
        storage_filesystem: Any = None,
        *,
        tune_config: TuneConfig | Mapping[str, Any] | None = None,
        run_config: RunConfig | Mapping[str, Any] | None = None,
    ) -> Tuner:
        """A tuner that goes on with the search at this path.

        Functions and objects are not kept with a search, since they would have to be pickles: the trainable is given
        again, and so is a space with functions or objects in it, and a `tune_config` with a searcher or a scheduler
        of your own. `resume_errored` lets trials that had failed go on from their last checkpoint, `restart_errored`
        runs them anew.
        """
        home = Home.of_path(os.fspath(path), storage_filesystem)
        if not book.is_search(home):
            raise ValueError(f"there is no search at {os.fspath(path)}: its path is RunConfig's storage_path and name")
        if trainable is None:
            raise ValueError(
                "Tuner.restore needs the trainable: functions are not kept with a search\n\n"
                f"hint: Tuner.restore({os.fspath(path)!r}, trainable=...)"
            )
        if resume_errored and restart_errored:
            raise ValueError("resume_errored and restart_errored exclude one another")
        before = Before(home)
        place = {"name": home.name, "storage_path": home.storage_path, "storage_filesystem": storage_filesystem}
        asked = _run_config_of(run_config, trainable)
        tuner = cls(
            trainable,
            param_space=param_space if param_space is not None else before.param_space(),
            tune_config=tune_config if tune_config is not None else before.tune_config(),
            run_config=dataclasses.replace(asked, **place),
        )
        tuner._take_up = TakeUp(resume_unfinished, "resume" if resume_errored else "restart" if restart_errored else "")
        return tuner

    def _driven(self, held: Held, terminal: SearchTerminal) -> Outcome:
        before = next((event for event in reversed(held.past) if isinstance(event, SearchStarted)), None)
        if before is not None:
            check_same(self._space, _described_in(before))
        seed = self._seed(before)
        advice = self._advice(seed)
        room = room_of(self.run_config, terminal.say)
        callbacks = self._callbacks
        driver = SearchDriver(self._plan(held, advice, room, callbacks, terminal, seed), held, self._seams)
        if driver.is_done:
            terminal.say(
                f"search {self.run_config.name} is already complete: nothing is run. "
                "Give it another name, or more num_samples, to search on"
            )
            return driver.outcome
        interrupts = SignalInterrupts(_Asked(driver))
        callbacks.setup(getattr(self.run_config, "stop", None), self.tune_config.num_samples, driver.num_trials)
        with contextlib.closing(room), interrupts:
            return driver.drive()

    def _plan(
        self,
        held: Held,
        advice: Advice,
        room: SearchRoom,
        callbacks: Callbacks,
        terminal: SearchTerminal,
        seed: int,
    ) -> Plan:
        config, home = self.tune_config, self.run_config.home
        notice_s = settings.load().report_notice_s

        def play(trial: Trial, life: Life, part: TrialPart, seams: Seams) -> Result:
            run_config = callbacks.for_trial(self._config_of_run(life.run))
            trainer = self._planned.trainer(trial.config, run_config, life.initial)
            site = part.site(trainer.scaling_config, run_config)
            asked = dataclasses.replace(
                trainer._asked(site),
                waits_in_reports=advice.is_waited_for,
                pinned=life.pinned,
                purpose=life.purpose,
            )
            shown = TrialTerminal(trial.trial_id, run_config.home.layout, terminal, notice_s)
            return played(asked, shown, seams)

        def started() -> SearchStarted:
            return SearchStarted(
                trainable=self._planned.name,
                num_samples=config.num_samples,
                seed=seed,
                metric=config.metric,
                mode=config.mode,
                described=raw(described(self._space, config)),
                at=self._seams.clock.wall(),
                pid=os.getpid(),
                host=socket.gethostname(),
                lease=held.lease.number,
            )

        return Plan(
            home=home,
            advice=advice,
            room=room,
            needs=self._planned.needs,
            play=play,
            restored=self._space.restored,
            started=started,
            num_trials=self._num_trials(),
            max_concurrent=config.max_concurrent_trials or None,
            time_budget_s=config.budget_s,
            fail_fast=bool(getattr(self.run_config.failure_config, "fail_fast", False)),
            observers=(terminal, callbacks),
            say=terminal.say,
            reset_errored=self._take_up.reset_errored,
            resume_unfinished=self._take_up.resume_unfinished,
            grace_s=settings.load().preemption_grace_s,
        )

    def _config_of_run(self, run: str) -> RunConfig:
        """Of a trial's run: the search's, but for its place, which is within the search."""
        home = self.run_config.home
        return dataclasses.replace(self.run_config, name=run, storage_path=joined(home.storage_path, home.name))

    def _num_trials(self) -> int | None:
        config = self.tune_config
        if config.num_samples == -1 or self._searcher.counts_samples:
            return None
        return config.num_samples

    def _seed(self, before: SearchStarted | None) -> int:
        if self.tune_config.seed is not None:
            return self.tune_config.seed
        return before.seed if before is not None else random.SystemRandom().getrandbits(31)

    def _advice(self, seed: int) -> Advice:
        config = self.tune_config
        searcher, scheduler, stopper = self._advisers()
        searcher.set_search_properties(
            config.metric, config.mode, self.param_space, num_samples=config.num_samples, seed=seed
        )
        scheduler.set_search_properties(config.metric, config.mode, seed=seed)
        return Advice(searcher, scheduler, stopper, self._space.stored)

    def _advisers(self) -> tuple[Searcher, TrialScheduler, Stopper | None]:
        """Those that were given, for the first search; for another one, as they were before that."""
        if self._unused is None:
            self._unused = copy.deepcopy((self._searcher, self._scheduler, self._stopper))
            return self._searcher, self._scheduler, self._stopper
        return copy.deepcopy(self._unused)

    def _results(self, errors: Mapping[str, BaseException] | None = None) -> ResultGrid:
        home = self.run_config.home
        search = search_told_by(book.past_of(home), self._space.restored)
        told = {
            trial: error
            for trial, error in (errors or {}).items()
            if isinstance(error, Exception) and not isinstance(error, FailedBefore)  # Its run tells more of that one.
        }
        return ResultGrid(search, home, told, self._space.restored)

    def _ended(self, outcome: Outcome, grid: ResultGrid) -> ResultGrid:
        search = outcome.search
        if outcome.failed_metric:
            raise ValueError(_missing_metric(search, outcome.failed_metric))
        if getattr(self.run_config.failure_config, "fail_fast", False) == "raise":
            for error in outcome.errors.values():
                raise error
        if outcome.preempted:
            raise PreemptionError(
                f"search {self.run_config.name} was preempted\n\n"
                "hint: run the script again with the same RunConfig(storage_path=..., name=...) to continue it",
                grid,
            )
        if outcome.interrupted > 1:
            raise KeyboardInterrupt
        return grid


@dataclasses.dataclass(frozen=True)
class TakeUp:
    """What becomes of trials that an earlier driver left."""

    resume_unfinished: bool = True
    reset_errored: str = ""


class _Asked:
    """Signals, passed on to a search."""

    def __init__(self, driver: SearchDriver) -> None:
        self._driver = driver

    def request_stop(self, *, now: bool) -> None:
        self._driver.request_stop(now=now)

    def request_preemption(self, grace_s: float) -> None:
        self._driver.request_preemption()


def _run_config_of(given: RunConfig | Mapping[str, Any] | None, trainable: Any) -> RunConfig:
    if given is None and isinstance(trainable, DataParallelTrainer):
        return trainable.run_config
    return given if isinstance(given, RunConfig) else as_config(TuneRunConfig, given, "run_config")


def _described_in(event: SearchStarted) -> Any:
    return unraw(event.described)


def _missing_metric(search: Search, trial_id: str) -> str:
    last = search.trials[trial_id].last_result or {}
    names = ", ".join(sorted(name for name in last if name not in FILLED)) or "nothing"
    return (
        f"trial {trial_id} ended without ever reporting {search.metric!r}, the metric of TuneConfig; "
        f"it reported {names}\n\n"
        "hint: call tune.report() with it, or correct TuneConfig(metric=...)"
    )


def _check_metric(config: TuneConfig, searcher: Searcher, scheduler: TrialScheduler) -> None:
    """Whoever compares trials has to know by what."""
    if not scheduler.set_search_properties(config.metric, config.mode):
        raise ValueError(
            f"TuneConfig(metric={config.metric!r}, mode={config.mode!r}) and {type(scheduler).__name__}("
            f"metric={scheduler.metric!r}, mode={scheduler.mode!r}) do not agree\n\n"
            "hint: give the metric to TuneConfig alone"
        )
    if scheduler.decides and scheduler.metric is None:
        raise ValueError(f"{type(scheduler).__name__} compares trials: it needs TuneConfig(metric=..., mode=...)")
    if searcher.needs_metric and searcher.metric is None and config.metric is None:
        raise ValueError(f"{type(searcher).__name__} learns from results: it needs TuneConfig(metric=..., mode=...)")
