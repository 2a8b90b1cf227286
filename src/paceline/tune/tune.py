"""`tune.run` and `run_experiments`: Ray Tune's functions around a search. They make a `Tuner` and call `fit()`."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from paceline._core.arguments import bad_value, check_bool, check_instance, check_int, check_names
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import coerce_config
from paceline.train.trainer import DataParallelTrainer
from paceline.tune.analysis import ExperimentAnalysis
from paceline.tune.config import CheckpointConfig, FailureConfig, RunConfig, SyncConfig
from paceline.tune.driver.search_storage import is_search
from paceline.tune.error import TuneError
from paceline.tune.experiment import Experiment, list_experiments
from paceline.tune.result_grid import ResultGrid
from paceline.tune.schedulers.scheduler import TrialScheduler
from paceline.tune.search.searcher import Searcher
from paceline.tune.trainables.trainable import Trainable
from paceline.tune.trainables.wrapping import as_wrapped, with_resources
from paceline.tune.trial import Trial
from paceline.tune.tune_config import TuneConfig
from paceline.tune.tuner import SearchGroup, Tuner, set_resume

_MAX_SHOWN = 10
"""How many failed trials an error lists."""


class ResumeType(Enum):
    """What becomes of trials of one kind when a search is resumed."""

    RESUME = "resume"
    RESTART = "restart"
    SKIP = "skip"


@dataclass(frozen=True)
class ResumeConfig:
    """Which trials continue when a search is resumed: `tune.run(resume=True, resume_config=...)`."""

    finished: ResumeType = ResumeType.SKIP
    unfinished: ResumeType = ResumeType.RESUME
    errored: ResumeType = ResumeType.SKIP
    ResumeType = ResumeType

    def __post_init__(self) -> None:
        for name in ("finished", "unfinished", "errored"):
            check_instance(name, getattr(self, name), ResumeType, "a ResumeConfig.ResumeType")
        if self.finished is not ResumeType.SKIP:
            raise bad_value("finished", "ResumeType.SKIP: a finished trial has its result", self.finished)
        if self.unfinished is ResumeType.RESTART:
            raise bad_value("unfinished", "ResumeType.RESUME or ResumeType.SKIP", self.unfinished)


_SUFFIXES = {
    "ERRORED": ResumeConfig(errored=ResumeType.RESUME),
    "ERRORED_ONLY": ResumeConfig(unfinished=ResumeType.SKIP, errored=ResumeType.RESUME),
    "RESTART_ERRORED": ResumeConfig(errored=ResumeType.RESTART),
    "RESTART_ERRORED_ONLY": ResumeConfig(unfinished=ResumeType.SKIP, errored=ResumeType.RESTART),
}


def run(
    run_or_experiment: Any,
    *,
    name: str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    stop: Any = None,
    time_budget_s: float | timedelta | None = None,
    config: Mapping[str, Any] | None = None,
    resources_per_trial: Any = None,
    num_samples: int = 1,
    storage_path: str | os.PathLike[str] | None = None,
    storage_filesystem: Any = None,
    search_alg: Searcher | str | None = None,
    scheduler: TrialScheduler | str | None = None,
    checkpoint_config: CheckpointConfig | Mapping[str, Any] | None = None,
    verbose: int | None = None,
    progress_reporter: Any = None,
    log_to_file: bool | str | tuple[str, str] = False,
    trial_name_creator: Callable[[Trial], str] | None = None,
    trial_dirname_creator: Callable[[Trial], str] | None = None,
    sync_config: SyncConfig | Mapping[str, Any] | None = None,
    export_formats: Sequence[str] | None = None,
    max_failures: int = 0,
    fail_fast: bool | str = False,
    restore: Checkpoint | str | os.PathLike[str] | None = None,
    resume: bool | str | None = None,
    resume_config: ResumeConfig | None = None,
    reuse_actors: bool | None = None,
    raise_on_failed_trial: bool = True,
    callbacks: Sequence[Any] | None = None,
    max_concurrent_trials: int | None = None,
    keep_checkpoints_num: int | None = None,
    checkpoint_score_attr: str | None = None,
    checkpoint_freq: int = 0,
    checkpoint_at_end: bool = False,
    chdir_to_trial_dir: bool | str = "DEPRECATED",
    local_dir: str | os.PathLike[str] | None = None,
) -> ExperimentAnalysis:
    """Search as `Tuner(...).fit()` does, with Ray Tune's older arguments, and return an `ExperimentAnalysis`.

        analysis = tune.run(train, config={"lr": tune.uniform(0, 1)}, num_samples=10, metric="loss", mode="min")
        analysis.best_config

    `run_or_experiment` is a function, a `Trainable` class, a trainer, a registered name, or an `Experiment`, which has
    its own `config`, `stop`, `num_samples` and so on. `search_alg` and `scheduler` may be names such as `"random"` and
    `"asha"`. `restore` is a checkpoint that every trial starts from; `export_formats` is passed to
    `Trainable.export_model` when a trial ends. Failed trials raise `TuneError`, unless `raise_on_failed_trial` is
    False.

    `resume=None` does as `Tuner`: a search of this name goes on, and a complete one gives its results. `True` needs
    one, `"AUTO"` does not, `False` begins another beside it, as `name-2`. `"AUTO+ERRORED"`, `"+ERRORED_ONLY"` and
    `"+RESTART_ERRORED"` also run failed trials again; or say so with a `ResumeConfig`.
    """
    check_bool("raise_on_failed_trial", raise_on_failed_trial)
    if isinstance(run_or_experiment, Experiment):
        experiment = run_or_experiment
    else:
        experiment = Experiment(
            name=name,  # type: ignore[arg-type]
            run=run_or_experiment,
            stop=stop,
            time_budget_s=time_budget_s,
            config=config,
            resources_per_trial=resources_per_trial,
            num_samples=num_samples,
            storage_path=storage_path,
            storage_filesystem=storage_filesystem,
            checkpoint_config=checkpoint_config,
            sync_config=sync_config,
            trial_name_creator=trial_name_creator,
            trial_dirname_creator=trial_dirname_creator,
            log_to_file=log_to_file,
            export_formats=export_formats,
            max_failures=max_failures,
            restore=restore,
            local_dir=local_dir,
        )
    tuner = _make_tuner(
        experiment,
        metric=metric,
        mode=mode,
        search_alg=search_alg,
        scheduler=scheduler,
        verbose=verbose,
        progress_reporter=progress_reporter,
        fail_fast=fail_fast,
        resume=resume,
        resume_config=resume_config,
        reuse_actors=reuse_actors,
        callbacks=callbacks,
        max_concurrent_trials=max_concurrent_trials,
        chdir_to_trial_dir=True if isinstance(chdir_to_trial_dir, str) else chdir_to_trial_dir,
        older=(keep_checkpoints_num, checkpoint_score_attr, checkpoint_freq, checkpoint_at_end),
    )
    grid = tuner.fit()
    if raise_on_failed_trial:
        _raise_if_failed([grid])
    return ExperimentAnalysis.from_results(grid)


def run_experiments(
    experiments: Experiment | Sequence[Experiment] | Mapping[str, Any],
    scheduler: TrialScheduler | str | None = None,
    verbose: int | None = None,
    progress_reporter: Any = None,
    resume: bool | str | None = None,
    resume_config: ResumeConfig | None = None,
    reuse_actors: bool | None = None,
    raise_on_failed_trial: bool = True,
    concurrent: bool = True,
    callbacks: Sequence[Any] | None = None,
) -> list[Trial]:
    """Run several searches, side by side, and return the trials of all of them.

        run_experiments({"first": {"run": train, "config": {"lr": 0.1}}, "second": {"run": train, "num_samples": 3}})

    The searches share this machine or cluster; with `concurrent=False` they run one after the other. Each has its own
    copy of the scheduler, and all call the same callbacks, one call at a time. Ctrl-C stops all of them. Failed trials
    raise `TuneError` after the last one.
    """
    check_bool("concurrent", concurrent)
    check_bool("raise_on_failed_trial", raise_on_failed_trial)
    tuners = [
        _make_tuner(
            experiment,
            scheduler=copy.deepcopy(scheduler),
            verbose=verbose,
            progress_reporter=copy.deepcopy(progress_reporter),
            resume=resume,
            resume_config=resume_config,
            reuse_actors=reuse_actors,
            callbacks=callbacks,
        )
        for experiment in list_experiments(experiments)
    ]
    grids = SearchGroup().fit_all(tuners) if concurrent else [tuner.fit() for tuner in tuners]
    if raise_on_failed_trial:
        _raise_if_failed(grids)
    return [trial for grid in grids for trial in grid.trials]


def _make_tuner(
    experiment: Experiment,
    *,
    scheduler: TrialScheduler | str | None,
    verbose: int | None,
    progress_reporter: Any,
    resume: bool | str | None,
    resume_config: ResumeConfig | None,
    reuse_actors: bool | None,
    callbacks: Sequence[Any] | None,
    metric: str | None = None,
    mode: str | None = None,
    search_alg: Searcher | str | None = None,
    fail_fast: bool | str = False,
    max_concurrent_trials: int | None = None,
    chdir_to_trial_dir: bool = True,
    older: tuple[int | None, str | None, int, bool] = (None, None, 0, False),
) -> Tuner:
    tune_config = TuneConfig(
        metric=metric,
        mode=mode,
        search_alg=_make_searcher(search_alg),
        scheduler=_make_scheduler(scheduler),
        num_samples=experiment.num_samples,
        max_concurrent_trials=max_concurrent_trials,
        time_budget_s=experiment.time_budget_s,
        reuse_actors=reuse_actors,
        chdir_to_trial_dir=chdir_to_trial_dir,
        trial_name_creator=experiment.trial_name_creator,
        trial_dirname_creator=experiment.trial_dirname_creator,
    )
    run_config = RunConfig(
        name=experiment.name,
        storage_path=experiment.storage_path,
        storage_filesystem=experiment.storage_filesystem,
        stop=experiment.stop,
        verbose=verbose,
        progress_reporter=progress_reporter,
        log_to_file=experiment.log_to_file,
        sync_config=coerce_config(SyncConfig, experiment.sync_config, "sync_config")
        if experiment.sync_config is not None
        else None,
        failure_config=FailureConfig(max_failures=experiment.max_failures, fail_fast=fail_fast),
        checkpoint_config=_make_checkpoint_config(experiment.checkpoint_config, *older),
        callbacks=callbacks or (),
        if_exists="new" if resume is False else None,
        local_dir=experiment.local_dir,
    )
    tuner = Tuner(
        _make_trainable(experiment), param_space=experiment.config, tune_config=tune_config, run_config=run_config
    )
    _prepare_resume(tuner, resume, resume_config)
    return tuner


def _make_searcher(search_alg: Any) -> Any:
    if not isinstance(search_alg, str):
        return search_alg
    from paceline import tune

    return tune.create_searcher(search_alg)


def _make_scheduler(scheduler: Any) -> Any:
    if not isinstance(scheduler, str):
        return scheduler
    from paceline import tune

    return tune.create_scheduler(scheduler)


def _make_trainable(experiment: Experiment) -> Any:
    trainable, restore, formats = experiment.run, experiment.restore, experiment.export_formats
    if experiment.resources_per_trial is not None:
        trainable = with_resources(trainable, experiment.resources_per_trial)
    if restore is None and formats is None:
        return trainable
    wrapped = as_wrapped(trainable)
    if isinstance(wrapped.trainable, DataParallelTrainer):
        raise ValueError(
            "restore and export_formats are for functions and tune.Trainable classes\n\n"
            "hint: pass resume_from_checkpoint to the trainer, and save the model in its train function"
        )
    if restore is not None:
        initial = restore if isinstance(restore, Checkpoint) else Checkpoint(os.fspath(restore))
        wrapped = dataclasses.replace(wrapped, initial=initial)
    if formats is not None:
        if not isinstance(wrapped.trainable, type) or not issubclass(wrapped.trainable, Trainable):
            raise ValueError(
                f"export_formats={formats!r} needs a tune.Trainable with export_model(), and "
                f"{experiment.run_identifier} is a function\n\nhint: save the model in the function itself"
            )
        wrapped = dataclasses.replace(wrapped, export_formats=tuple(check_names("export_formats", formats)))
    return wrapped


def _make_checkpoint_config(
    config: Any, num_to_keep: int | None, score_attr: str | None, frequency: int, at_end: bool
) -> CheckpointConfig:
    older = {
        "keep_checkpoints_num": num_to_keep,
        "checkpoint_score_attr": score_attr,
        "checkpoint_freq": frequency,
        "checkpoint_at_end": at_end,
    }
    given = [name for name, value in older.items() if value]
    if config is not None:
        if given:
            raise ValueError(f"{', '.join(given)} and checkpoint_config contradict each other\n\nhint: use the latter")
        return coerce_config(CheckpointConfig, config, "checkpoint_config")  # type: ignore[no-any-return]
    check_int("checkpoint_freq", frequency, at_least=0)
    order, attribute = "max", score_attr
    if score_attr is not None and score_attr.startswith("min-"):
        order, attribute = "min", score_attr.removeprefix("min-")
    return CheckpointConfig(
        num_to_keep=num_to_keep,
        checkpoint_score_attribute=attribute,
        checkpoint_score_order=order,
        checkpoint_frequency=frequency,
        checkpoint_at_end=at_end or None,
    )


def _prepare_resume(tuner: Tuner, resume: Any, resume_config: ResumeConfig | None) -> None:
    """Let the tuner resume the search as `resume` says."""
    check_instance("resume_config", resume_config, ResumeConfig, "a ResumeConfig", optional=True)
    if resume is None or resume is False:
        if resume_config is not None:
            raise ValueError(f"resume_config needs resume=True or 'AUTO', got resume={resume!r}")
        return
    where, _, suffix = ("LOCAL" if resume is True else str(resume)).partition("+")
    if where in _SUFFIXES and not suffix:
        where, suffix = "LOCAL", where
    if where not in ("AUTO", "LOCAL", "REMOTE") or (suffix and suffix not in _SUFFIXES):
        expected = f"True, False, None or 'AUTO', the latter also with {', '.join('+' + each for each in _SUFFIXES)}"
        raise bad_value("resume", expected, resume)
    location = tuner.run_config.location
    if not is_search(location):
        if where != "AUTO":
            raise TuneError(f"resume={resume!r}, but there is no search at {location.uri}\n\nhint: use resume='AUTO'")
        return
    chosen = resume_config or _SUFFIXES.get(suffix, ResumeConfig())
    set_resume(
        tuner,
        resume_unfinished=chosen.unfinished is ResumeType.RESUME,
        reset_errored="" if chosen.errored is ResumeType.SKIP else chosen.errored.value,
    )


def _raise_if_failed(grids: Sequence[ResultGrid]) -> None:
    failed = [result for grid in grids for result in grid if result.status == "ERROR"]
    if not failed:
        return
    num_trials = sum(map(len, grids))
    listed = "\n".join(f"  trial {result.trial_id}: {result.why.splitlines()[0]}" for result in failed[:_MAX_SHOWN])
    more = f"\n  and {len(failed) - _MAX_SHOWN} more" if len(failed) > _MAX_SHOWN else ""
    raise TuneError(
        f"{len(failed)} of {num_trials} trials failed\n\n{listed}{more}\n\n"
        "hint: with raise_on_failed_trial=False the results of the others are returned"
    ) from failed[0].error
