"""TuneConfig: what to search for, how many trials, and with which searcher and scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from paceline._core.arguments import (
    bad_value,
    check_bool,
    check_callable,
    check_choice,
    check_instance,
    check_int,
    is_int,
    is_number,
)
from paceline.tune.schedulers.scheduler import TrialScheduler
from paceline.tune.search.searcher import Searcher
from paceline.tune.trial import Trial

_SEVERAL_METRICS = "for several objectives, use OptunaSearch(metric=['loss', 'size'], mode=['min', 'min'])"


@dataclass(frozen=True)
class TuneConfig:
    """Settings of a search.

    `metric` is a name that trials report, or a path such as `eval/loss`; `mode` is `"min"` or `"max"`. `num_samples` is
    the number of trials; with `grid_search` in the space, the number of times the whole grid is run; -1 means
    unlimited, until `time_budget_s` (seconds, or a `timedelta`) is over. At most `max_concurrent_trials` run at a time,
    and no more than the resources allow. `search_alg` suggests configurations (random ones and grids by default);
    `scheduler` stops trials that are not promising (none by default). With the same `seed`, a search makes the same
    trials.
    """

    metric: str | None = None
    mode: str | None = None
    search_alg: Searcher | None = None
    scheduler: TrialScheduler | None = None
    num_samples: int = 1
    max_concurrent_trials: int | None = None
    time_budget_s: float | timedelta | None = None
    reuse_actors: bool | None = None
    """Accepted for scripts that set it, and ignored: each trial has its own process, which starts at once."""
    seed: int | None = None
    chdir_to_trial_dir: bool = True
    """Each trial has a working directory of its own; False: that of the script, shared by all trials."""
    trial_name_creator: Callable[[Trial], str] | None = None
    """Gives a new trial the name that messages show and `get_trial_name()` returns."""
    trial_dirname_creator: Callable[[Trial], str] | None = None
    """Gives a new trial the name of its directory, which no other trial may have."""

    def __post_init__(self) -> None:
        if self.metric is not None and not isinstance(self.metric, str):
            raise bad_value("metric", "the name of one metric or None", self.metric, _SEVERAL_METRICS)
        check_choice("mode", self.mode, ("min", "max", None))
        if self.metric is not None and self.mode is None:
            raise ValueError(f"metric={self.metric!r} needs a mode: 'min' or 'max'")
        if not is_int(self.num_samples) or (self.num_samples < 1 and self.num_samples != -1):
            raise bad_value("num_samples", "a positive integer, or -1 for no limit", self.num_samples)
        check_int("max_concurrent_trials", self.max_concurrent_trials, at_least=0, optional=True)
        if self.budget_s is not None and not (is_number(self.budget_s) and self.budget_s > 0):
            raise bad_value("time_budget_s", "a positive number of seconds, a timedelta or None", self.time_budget_s)
        check_int("seed", self.seed, optional=True)
        check_bool("chdir_to_trial_dir", self.chdir_to_trial_dir)
        check_callable("trial_name_creator", self.trial_name_creator, optional=True)
        check_callable("trial_dirname_creator", self.trial_dirname_creator, optional=True)
        check_instance("search_alg", self.search_alg, Searcher, "a searcher such as OptunaSearch()", optional=True)
        expected = "a scheduler such as ASHAScheduler()"
        check_instance("scheduler", self.scheduler, TrialScheduler, expected, optional=True)

    @property
    def budget_s(self) -> float | None:
        budget = self.time_budget_s
        return budget.total_seconds() if isinstance(budget, timedelta) else budget
