"""TuneConfig: what to search for, how many trials, and with which searcher and scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from paceline.tune.schedulers.scheduler import TrialScheduler
from paceline.tune.search.searcher import Searcher


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

    def __post_init__(self) -> None:
        if self.metric is not None and not isinstance(self.metric, str):
            raise ValueError(
                f"metric={self.metric!r} is not a name; a search for several objectives gives them to its searcher, "
                "as in OptunaSearch(metric=['loss', 'size'], mode=['min', 'min'])"
            )
        if self.mode not in (None, "min", "max"):
            raise ValueError(f"mode={self.mode!r} is neither 'min' nor 'max'")
        if self.metric is not None and self.mode is None:
            raise ValueError(f"metric={self.metric!r} needs a mode: 'min' or 'max'")
        if not _is_whole(self.num_samples) or (self.num_samples < 1 and self.num_samples != -1):
            raise ValueError(f"num_samples={self.num_samples!r} is not 1 or more, or -1 for no end")
        limit = self.max_concurrent_trials
        if limit is not None and (not _is_whole(limit) or limit < 0):
            raise ValueError(f"max_concurrent_trials={limit!r} is not a number of 1 or more, or None for no limit")
        budget_s = self.budget_s
        if budget_s is not None and not budget_s > 0:
            raise ValueError(f"time_budget_s={self.time_budget_s!r} is not a time above 0, or None")
        if self.seed is not None and not _is_whole(self.seed):
            raise ValueError(f"seed={self.seed!r} is not a whole number")
        _check("search_alg", self.search_alg, Searcher, "Searcher, as OptunaSearch() is")
        _check("scheduler", self.scheduler, TrialScheduler, "TrialScheduler, as ASHAScheduler() is")

    @property
    def budget_s(self) -> float | None:
        given: Any = self.time_budget_s
        if isinstance(given, timedelta):
            return given.total_seconds()
        if given is not None and (isinstance(given, bool) or not isinstance(given, int | float)):
            raise ValueError(f"time_budget_s={given!r} is not a number of seconds, a timedelta or None")
        return given


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check(name: str, value: Any, kind: type[Any], told: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{name}={value!r} is not a paceline.tune {told}")
