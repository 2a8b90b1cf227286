"""Tuner: checks its arguments, makes a plan from them, drives the search and returns a ResultGrid."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import dataclasses
import os
import random
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from paceline._core import settings
from paceline._core.errors import PreemptionError, TrainingInterrupt
from paceline._engine.local.launchers import prewarm
from paceline._storage.run_location import RunLocation, join_storage_path
from paceline.train.config import RunConfig, ScalingConfig, coerce_config, is_searched
from paceline.train.display.screen import Screen, open_screen
from paceline.train.driver.interrupts import SignalInterrupts
from paceline.train.driver.run_directory import choose_name, make_different_run_error
from paceline.train.driver.run_session import execute_run
from paceline.train.driver.run_spec import RunEnvironment, RunHooks
from paceline.train.driver.trainer_arguments import build_run_spec
from paceline.train.result import Result
from paceline.train.trainer import DataParallelTrainer
from paceline.tune.config import RunConfig as TuneRunConfig
from paceline.tune.display.terminal import ReporterObserver, SearchTerminal, TrialTerminal
from paceline.tune.driver import search_storage
from paceline.tune.driver.advisers import SearchAdvisers
from paceline.tune.driver.callbacks import SearchCallbacks
from paceline.tune.driver.events import SearchEnded, SearchStarted, decode_raw, encode_raw
from paceline.tune.driver.policy_log import make_policy_logs
from paceline.tune.driver.search_capacity import SearchCapacity, TrialAllocation, open_search_capacity
from paceline.tune.driver.search_description import (
    PreviousSearch,
    check_same_space,
    describe_search,
    find_changes_of_search,
    find_changes_of_space,
)
from paceline.tune.driver.search_driver import SearchDriver
from paceline.tune.driver.search_spec import SearchOutcome, SearchSpec, TrialRunSpec
from paceline.tune.driver.search_state import Search, run_name
from paceline.tune.driver.search_storage import OpenSearch
from paceline.tune.driver.trial_run import FailedEarlierError
from paceline.tune.logger import make_default_loggers
from paceline.tune.registry import get_trainable_cls
from paceline.tune.result_grid import ResultGrid, make_result_grid
from paceline.tune.results.report_history import ADDED_METRICS, replay_search
from paceline.tune.schedulers.scheduler import FIFOScheduler, MetricScheduler, TrialScheduler
from paceline.tune.search.basic_variant import BasicVariantGenerator
from paceline.tune.search.searcher import Searcher
from paceline.tune.space.space import Space
from paceline.tune.stopper import Stopper, stopper_of
from paceline.tune.trainables.trainable_plans import find_preloads, make_trainable_plan
from paceline.tune.trial import Trial
from paceline.tune.tune_config import TuneConfig

PRELOADED = ("paceline.tune.session", "paceline.tune.trainables.trial_functions", "paceline.train.trainer")
"""Preloaded for trial workers: importing these takes each a quarter of a second."""


class Tuner:
    """Searches for the best configuration among many runs.

        def train_func(config):
            for step in range(10):
                tune.report({"loss": (config["lr"] - 0.1) ** 2 / (step + 1)})

        tuner = tune.Tuner(
            train_func,
            param_space={"lr": tune.loguniform(1e-4, 1)},
            tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=20),
        )
        best = tuner.fit().get_best_result()

    `trainable` is a function of a configuration, a `tune.Trainable` class, a name from `tune.register_trainable`, or a
    trainer, into which a `param_space` such as `{"train_loop_config": {...}}` is merged. `run_config` sets the search's
    name and storage location; by default it is the trainer's own. A script that runs again with the same name and path
    resumes the search: finished trials are kept, the others resume from their last checkpoints.
    """

    _run_environment: RunEnvironment = RunEnvironment()
    _group: SearchGroup | None = None

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
                "Tuner needs a trainable: a function of a configuration, a tune.Trainable class, a trainer or the name "
                "of one"
            )
        self.trainable = trainable = get_trainable_cls(trainable) if isinstance(trainable, str) else trainable
        self.tune_config: TuneConfig = coerce_config(TuneConfig, tune_config, "tune_config")
        self.run_config = _resolve_run_config(run_config, trainable)
        if self.run_config.detached:
            raise ValueError(
                "RunConfig(detached=True) is for a single run: the driver of a search is this script\n\n"
                "hint: submit the script itself as a job of the cluster"
            )
        if self.run_config.fork_from is not None:
            raise ValueError(
                "RunConfig(fork_from=...) is for a single run\n\n"
                "hint: pass resume_from_checkpoint to the trainer, and every trial starts from it"
            )
        self._trainable_plan = make_trainable_plan(trainable)
        self._trainable_plan.check(self.run_config)
        param_space = _unfold_scaling(param_space)
        self.param_space: Mapping[str, Any] = param_space if param_space is not None else {}
        self._space = Space(param_space)
        self._trainable_plan.check_space(self._space)
        stop = getattr(self.run_config, "stop", None)
        self._stopper = stopper_of(stop) if stop is not None else None
        self._searcher: Searcher = self.tune_config.search_alg or BasicVariantGenerator()
        self._scheduler: TrialScheduler = self.tune_config.scheduler or FIFOScheduler()
        self._initial_advisers: tuple[Searcher, TrialScheduler, Stopper | None] | None = None
        self._is_restored = False
        self._resume_unfinished = True
        self._reset_errored = ""
        self._grid: ResultGrid | None = None
        self._given_run_config = self.run_config
        self._callbacks = self._make_callbacks()
        _check_metric(self.tune_config, self._searcher, self._scheduler)

    def fit(self) -> ResultGrid:
        """Search until no trial is left, the time is over, or a stopper ends it.

        A failed trial does not fail the search: its error is in the result. Ctrl-C once stops every trial at its next
        report, twice immediately; both raise `TrainingInterrupt`, whose `result` has the results so far. The same
        script resumes the search.
        """
        self.run_config = choose_name(self._given_run_config)
        location = self.run_config.location
        if self.run_config is not self._given_run_config:
            self._callbacks = self._make_callbacks()
        prewarm(*PRELOADED, *find_preloads(getattr(self.trainable, "trainable", self.trainable)))
        verbose = getattr(self.run_config, "verbose", None)
        verbosity = min(verbose, 2) if verbose is not None else settings.load().verbosity
        reporter = getattr(self.run_config, "progress_reporter", None)
        screen = open_screen(verbosity) if reporter is None else Screen()
        terminal = SearchTerminal(location.name, location.uri, verbosity, screen, has_reporter=reporter is not None)
        try:
            with search_storage.open_search(location, self._run_environment, terminal.say) as open_search:
                outcome = self._drive_search(open_search, terminal)
        finally:
            terminal.close()
        errors = {
            trial: error
            for trial, error in outcome.errors.items()
            if isinstance(error, Exception)
            and not isinstance(error, FailedEarlierError)  # The run has more details about that error.
        }
        self._grid = make_result_grid(outcome.search, location, errors, self._space.decode_config, outcome.events)
        return self._raise_or_return(outcome, self._grid, terminal)

    def get_results(self) -> ResultGrid:
        """The results of the search: of the last `fit()`, else those so far, read from storage."""
        if self._grid is None:
            location, decode_config = self.run_config.location, self._space.decode_config
            search = replay_search(search_storage.load_past_events(location), decode_config)
            self._grid = make_result_grid(search, location, decode_config=decode_config)
        return self._grid

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> bool:
        """Whether there is a search at this path."""
        return search_storage.is_search(RunLocation.from_path(os.fspath(path), storage_filesystem))

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
        """Return a tuner that resumes the search at this path.

        Functions and objects are not stored with a search, since they would have to be pickled. So pass the trainable
        again, and also a space with functions or objects in it, and a `tune_config` with a searcher or a scheduler of
        your own. `resume_errored` resumes failed trials from their last checkpoint; `restart_errored` restarts them
        from scratch.
        """
        location = RunLocation.from_path(os.fspath(path), storage_filesystem)
        if not search_storage.is_search(location):
            raise ValueError(f"no search at {os.fspath(path)}\n\nhint: the path is RunConfig's storage_path and name")
        if trainable is None:
            raise ValueError(
                "Tuner.restore needs the trainable: functions are not stored with a search\n\n"
                f"hint: use Tuner.restore({os.fspath(path)!r}, trainable=...)"
            )
        if resume_errored and restart_errored:
            raise ValueError("resume_errored and restart_errored cannot both be True")
        previous = PreviousSearch(location)
        place = {"name": location.name, "storage_path": location.storage_path, "storage_filesystem": storage_filesystem}
        spec = _resolve_run_config(run_config, trainable)
        tuner = cls(
            trainable,
            param_space=param_space if param_space is not None else previous.param_space(),
            tune_config=tune_config if tune_config is not None else previous.tune_config(),
            run_config=dataclasses.replace(spec, **place),
        )
        reset_errored = "resume" if resume_errored else "restart" if restart_errored else ""
        set_resume(tuner, resume_unfinished=resume_unfinished, reset_errored=reset_errored)
        return tuner

    def _make_callbacks(self) -> SearchCallbacks:
        given, name = self.run_config.callbacks, self.run_config.location.name
        lock = self._group.callback_lock if self._group is not None else None
        callbacks = [*given, *make_default_loggers(given)]
        return SearchCallbacks(callbacks, name, can_save=self._trainable_plan.can_save, lock=lock)

    def _drive_search(self, open_search: OpenSearch, terminal: SearchTerminal) -> SearchOutcome:
        previous = next(
            (event for event in reversed(open_search.past_events) if isinstance(event, SearchStarted)), None
        )
        seed = self.tune_config.seed
        if previous is not None:
            if self._is_old_result_wanted(previous, open_search, terminal):
                return SearchOutcome(replay_search(open_search.past_events), list(open_search.past_events))
            check_same_space(self._space, decode_raw(previous.described))
            seed = previous.seed if seed is None else seed
        elif seed is None:
            seed = random.SystemRandom().getrandbits(31)
        advisers = self._make_advisers(seed)
        capacity = open_search_capacity(self.run_config, terminal.say)
        advisers.use_capacity(capacity.total_resources)
        spec = self._make_spec(open_search, advisers, capacity, terminal, seed)
        driver = SearchDriver(spec, open_search, self._run_environment)
        if driver.is_done:
            terminal.say(
                f"search {self.run_config.name} has already finished. "
                "To continue, increase num_samples or use another name"
            )
            return driver.outcome
        interrupts: contextlib.AbstractContextManager[None] = (
            SignalInterrupts(driver) if self._group is None else self._group.watch(driver)
        )
        self._callbacks.setup(getattr(self.run_config, "stop", None), self.tune_config.num_samples, driver.num_trials)
        self._callbacks.restore_states(open_search.past_events)
        with contextlib.closing(capacity), interrupts:
            return driver.drive()

    def _is_old_result_wanted(self, previous: SearchStarted, open_search: OpenSearch, terminal: SearchTerminal) -> bool:
        """Compare with what was asked for last. Raise if the search is complete and was another one."""
        config, end, name = self.tune_config, open_search.past_events[-1], self.run_config.name or ""
        is_complete = isinstance(end, SearchEnded) and end.complete and not self._is_restored
        changes = find_changes_of_search(previous, config, self.trainable, self._trainable_plan.name)
        if is_complete:
            changes += [
                f"param_space: {each}" for each in find_changes_of_space(self._space, decode_raw(previous.described))
            ]
            if 0 <= config.num_samples < previous.num_samples:
                changes.append(f"TuneConfig(num_samples) was {previous.num_samples} and is {config.num_samples}")
        if is_complete and changes and self.run_config.if_exists != "resume":
            raise make_different_run_error("search", name, self.run_config.location.uri, changes)
        for change in changes:
            terminal.say(change)
        if is_complete and changes:
            terminal.say(f"search {name} has finished: these are its results. Use another name to search again")
        return is_complete and bool(changes)

    def _make_spec(
        self,
        open_search: OpenSearch,
        advisers: SearchAdvisers,
        capacity: SearchCapacity,
        terminal: SearchTerminal,
        seed: int,
    ) -> SearchSpec:
        config, location = self.tune_config, self.run_config.location
        notice_s = settings.load().report_notice_s
        waits_in_reports = advisers.must_wait_for_decisions or self._callbacks.can_request_saves
        sync_config = getattr(self.run_config, "sync_config", None)
        has_own_directory = config.chdir_to_trial_dir and settings.load().chdir_to_trial_dir

        def run_trial(trial: Trial, run_spec: TrialRunSpec, allocation: TrialAllocation, hooks: RunHooks) -> Result:
            storage_path = join_storage_path(location.storage_path, location.name)
            run_config = self._callbacks.for_trial(
                self.run_config, trial, name=run_spec.run, storage_path=storage_path, if_exists="resume"
            )
            trainer = self._trainable_plan.make_trainer(trial.config, run_config, run_spec.initial, run_spec.resources)
            target = allocation.make_target(trainer.scaling_config, run_config)
            spec = dataclasses.replace(
                build_run_spec(trainer.trainer_arguments, target),
                waits_in_reports=waits_in_reports,
                has_own_directory=has_own_directory,
                uploads_artifacts=sync_config is not None and sync_config.sync_artifacts,
                pinned=run_spec.pinned_seqs,
                purpose=run_spec.purpose,
                trial_id=trial.trial_id,
                trial_name=_name_run(trial, run_spec.run),
            )
            trial_terminal = TrialTerminal(trial.label, run_config.location.layout, terminal, notice_s)
            return execute_run(spec, trial_terminal, self._run_environment, hooks)

        starts = [event for event in open_search.past_events if isinstance(event, SearchStarted)]
        previous = starts[-1] if starts else None

        def make_start_event() -> SearchStarted:
            return SearchStarted(
                trainable=self._trainable_plan.name,
                num_samples=config.num_samples,
                seed=seed,
                metric=config.metric,
                mode=config.mode,
                described=encode_raw(describe_search(self._space, config, self.trainable)),
                at=self._run_environment.clock.wall(),
                pid=os.getpid(),
                host=socket.gethostname(),
                lease=open_search.lease.number,
                id=previous.id if previous is not None else secrets.token_hex(3)[:5],
            )

        num_trials = None if config.num_samples == -1 or self._searcher.counts_samples else config.num_samples
        return SearchSpec(
            location=location,
            advisers=advisers,
            capacity=capacity,
            resolve_needs=self._trainable_plan.resolve_needs,
            run_trial=run_trial,
            decode_config=self._space.decode_config,
            make_start_event=make_start_event,
            num_trials=num_trials,
            create_name=config.trial_name_creator,
            create_directory=config.trial_dirname_creator,
            max_concurrent=config.max_concurrent_trials or None,
            time_budget_s=config.budget_s,
            fail_fast=bool(getattr(self.run_config.failure_config, "fail_fast", False)),
            waits_in_reports=waits_in_reports,
            take_save_request=self._callbacks.take_save_request,
            save_callbacks=self._callbacks.save_states,
            observers=(
                terminal,
                *self._make_reporters(advisers, terminal, num_trials),
                self._callbacks,
                *make_policy_logs(advisers.scheduler, open_search, location),
            ),
            say=terminal.say,
            reset_errored=self._reset_errored,
            resume_unfinished=self._resume_unfinished,
            grace_s=settings.load().preemption_grace_s,
        )

    def _make_reporters(
        self, advisers: SearchAdvisers, terminal: SearchTerminal, num_trials: int | None
    ) -> list[ReporterObserver]:
        reporter = getattr(self.run_config, "progress_reporter", None)
        if reporter is None or terminal.verbosity < 1:
            return []

        def count_trials() -> int | None:
            return num_trials if num_trials is not None else getattr(advisers.searcher, "total_samples", None)

        return [ReporterObserver(reporter, type(advisers.scheduler).__name__, count_trials)]

    def _make_advisers(self, seed: int) -> SearchAdvisers:
        """Return the given searcher, scheduler and stopper for the first search, and fresh copies for later ones."""
        config = self.tune_config
        searcher, scheduler, stopper = self._searcher, self._scheduler, self._stopper
        if self._initial_advisers is not None:
            searcher, scheduler, stopper = copy.deepcopy(self._initial_advisers)
        else:
            self._initial_advisers = copy.deepcopy((searcher, scheduler, stopper))
        searcher.set_search_properties(
            config.metric, config.mode, self.param_space, num_samples=config.num_samples, seed=seed
        )
        scheduler.set_search_properties(config.metric, config.mode, seed=seed)
        return SearchAdvisers(searcher, scheduler, stopper, self._space.encode_config)

    def _raise_or_return(self, outcome: SearchOutcome, grid: ResultGrid, terminal: SearchTerminal) -> ResultGrid:
        search, hint = outcome.search, "hint: run the script again with the same RunConfig(storage_path=..., name=...)"
        if outcome.trial_without_metric:
            raise ValueError(_explain_missing_metric(search, outcome.trial_without_metric))
        if getattr(self.run_config.failure_config, "fail_fast", False) == "raise":
            for error in outcome.errors.values():
                raise error
        ending: PreemptionError | TrainingInterrupt
        is_stopped = outcome.num_interrupts > 0 and grid.status != "finished"
        if outcome.is_preempted:
            ending = PreemptionError(f"search {self.run_config.name} was preempted\n\n{hint} to continue it", grid)
        elif outcome.has_ctrl_c or (is_stopped and self.run_config.on_stop == "raise"):
            state = f"search {self.run_config.name} {'was stopped' if is_stopped else 'finished'}"
            more = f"\n\n{hint} to continue it" if is_stopped else ""
            ending = TrainingInterrupt(f"{state}, in {self.run_config.location.uri}{more}", grid).for_caller()
        else:
            return grid
        if terminal.verbosity < 1:  # Otherwise it has been said already.
            terminal.say(str(ending), error=True)
        raise ending


def _unfold_scaling(space: Any) -> Any:
    """Replace a `ScalingConfig` with domains by the dict of its arguments."""
    scaling = space.get("scaling_config") if isinstance(space, Mapping) else None
    if not isinstance(scaling, ScalingConfig) or not is_searched(scaling):
        return space
    given = {each.name: getattr(scaling, each.name) for each in dataclasses.fields(scaling)}
    changed = {name: value for name, value in given.items() if value != getattr(ScalingConfig(), name)}
    return {**space, "scaling_config": changed}


def _name_run(trial: Trial, run: str) -> str:
    """Return the trial's name; a default one with the number of the run, if the trial continues another one."""
    first = run_name(trial.trial_id, 0)
    is_default = trial.label == trial.trial_id and run.startswith(f"{first}-")
    return trial.trial_name + run.removeprefix(first) if is_default else trial.trial_name


class SearchGroup:
    """Searches that run side by side in threads: they are stopped together, and call callbacks one at a time."""

    def __init__(self) -> None:
        self.callback_lock = threading.RLock()
        self._lock = threading.Lock()  # protects both below
        self._drivers: list[SearchDriver] = []
        self._requests: list[Callable[[SearchDriver], None]] = []

    def fit_all(self, tuners: Sequence[Tuner]) -> list[ResultGrid]:
        """Run all searches to their end, then raise the first error, if any."""
        for tuner in tuners:
            tuner._group = self
            tuner._callbacks = tuner._make_callbacks()
        with SignalInterrupts(self), ThreadPoolExecutor(max(1, len(tuners)), "paceline-search") as threads:
            futures = [threads.submit(contextvars.copy_context().run, tuner.fit) for tuner in tuners]
        return [future.result() for future in futures]

    def request_stop(self, *, now: bool) -> None:
        self._request(lambda driver: driver.request_stop(now=now))

    def request_preemption(self, grace_s: float) -> None:
        self._request(lambda driver: driver.request_preemption(grace_s))

    @contextlib.contextmanager
    def watch(self, driver: SearchDriver) -> Iterator[None]:
        """Pass requests on to a driver, also those made before it began."""
        with self._lock:
            self._drivers.append(driver)
            requests = list(self._requests)
        for request in requests:
            request(driver)
        try:
            yield
        finally:
            with self._lock:
                self._drivers.remove(driver)

    def _request(self, request: Callable[[SearchDriver], None]) -> None:
        with self._lock:
            self._requests.append(request)
            drivers = list(self._drivers)
        for driver in drivers:
            request(driver)


def set_resume(tuner: Tuner, *, resume_unfinished: bool, reset_errored: str) -> None:
    """Let a tuner resume the search that is there; `reset_errored`: "resume" or "restart" failed trials, or neither."""
    tuner._is_restored = True
    tuner._resume_unfinished = resume_unfinished
    tuner._reset_errored = reset_errored


def _resolve_run_config(run_config: RunConfig | Mapping[str, Any] | None, trainable: Any) -> RunConfig:
    if run_config is None and isinstance(trainable, DataParallelTrainer):
        return trainable.run_config
    return run_config if isinstance(run_config, RunConfig) else coerce_config(TuneRunConfig, run_config, "run_config")


def _explain_missing_metric(search: Search, trial_id: str) -> str:
    last = search.trials[trial_id].last_result or {}
    names = ", ".join(sorted(name for name in last if name not in ADDED_METRICS)) or "nothing"
    return (
        f"trial {trial_id} never reported {search.metric!r}, the metric of TuneConfig; it reported {names}\n\n"
        "hint: pass it to tune.report(), or correct TuneConfig(metric=...)"
    )


def _check_metric(config: TuneConfig, searcher: Searcher, scheduler: TrialScheduler) -> None:
    if not scheduler.set_search_properties(config.metric, config.mode):
        raise ValueError(
            f"TuneConfig(metric={config.metric!r}, mode={config.mode!r}) and {type(scheduler).__name__}("
            f"metric={scheduler.metric!r}, mode={scheduler.mode!r}) do not agree\n\n"
            "hint: set the metric only in TuneConfig"
        )
    if isinstance(scheduler, MetricScheduler) and scheduler.metric is None:
        raise ValueError(f"{type(scheduler).__name__} needs TuneConfig(metric=..., mode=...) to compare trials")
    if searcher.needs_metric and searcher.metric is None and config.metric is None:
        raise ValueError(f"{type(searcher).__name__} needs TuneConfig(metric=..., mode=...) to learn from results")
