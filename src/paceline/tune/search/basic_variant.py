"""Grid and random search: the default searcher."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from paceline._core.arguments import bad_value, check_bool, check_int, is_int
from paceline.tune.search.searcher import Names, Searcher, check_points
from paceline.tune.space.space import Space
from paceline.tune.space.tree import Point
from paceline.tune.trial import Trial


@dataclass(eq=False, repr=False)
class BasicVariantGenerator(Searcher):
    """Every combination of `grid_search`, with random values, `num_samples` times over.

    `points_to_evaluate` come first: full or partial configurations, each in place of one of the `num_samples`. Values
    that a point leaves open are drawn, and all grid combinations that it leaves open are tried. At most
    `max_concurrent` trials run at a time; 0 means as many as the resources allow. With `constant_grid_search`, the
    random values are the same for all combinations of the grid. `random_state` is a seed, or a numpy generator to draw
    one from.

    The configuration of a trial depends only on the space, the seed and the trial's number, not on results.
    """

    CKPT_FILE_TMPL = "basic-variant-state-{}.json"
    needs_metric = False
    counts_samples = True
    unsaved = ("_space", "_points", "_ends", "_point_configs")

    points_to_evaluate: Sequence[Mapping[str, Any]] | None = None
    max_concurrent: int = 0
    constant_grid_search: bool = False
    random_state: Any = None
    _space: Space | None = field(default=None, init=False)
    _points: tuple[Point, ...] = field(default=(), init=False)
    _ends: tuple[int, ...] = field(default=(), init=False)
    """For each point, the number of the first trial after those of the point."""
    _num_samples: int = field(default=1, init=False)
    _num_suggested: int = field(default=0, init=False)
    _live: set[str] = field(default_factory=set, init=False)
    _is_finished: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        super().__init__()
        self._point_configs = check_points(self.points_to_evaluate)
        self.random_state = to_seed(self.random_state)
        self.set_max_concurrency(self.max_concurrent)
        check_bool("constant_grid_search", self.constant_grid_search)
        self.seed = 0

    @property
    def total_samples(self) -> int | None:
        """How many trials there will be; None: unlimited."""
        if self._num_samples == -1:
            return None
        rest = self._num_samples - len(self._points)
        return (self._ends[-1] if self._ends else 0) + rest * self._require_space.num_grid

    def set_search_properties(self, metric: Names, mode: Names, config: Mapping[str, Any] | Space, **spec: Any) -> bool:
        num_samples, seed = spec.get("num_samples", 1), spec.get("seed")
        if not is_int(num_samples) or (num_samples < 1 and num_samples != -1):
            raise bad_value("num_samples", "a positive integer, or -1 for no limit", num_samples)
        num_points = len(self._point_configs)
        if 0 <= num_samples < num_points:
            expected = f"at least {num_points}, the number of points_to_evaluate"
            raise bad_value("num_samples", expected, num_samples, "each point is one of the samples")
        space = config if isinstance(config, Space) else Space(config)
        points = [space.parse_point(point, f"points_to_evaluate[{i}]") for i, point in enumerate(self._point_configs)]
        self.metric, self.mode = metric, mode
        self._space, self._points = space, tuple(points)
        self._ends = tuple(accumulate(map(space.num_grid_at, points)))
        self._num_samples = num_samples
        self.seed = next((one for one in (self.random_state, seed) if one is not None), 0)
        return True

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        self.max_concurrent = check_int("max_concurrent", max_concurrent, at_least=0)
        return True

    def suggest(self, trial_id: str) -> Mapping[str, Any] | str | None:
        if self.is_finished():
            return self.FINISHED
        if self.max_concurrent and len(self._live) >= self.max_concurrent:
            return None
        config = self.configuration(self._num_suggested)
        self._add_trial(trial_id)
        return config

    def add_configurations(self, experiments: Any) -> None:
        """Take the space and the number of samples of an experiment: a dict with `config` and `num_samples`."""
        if isinstance(experiments, Mapping) and "config" not in experiments:
            experiments = list(experiments.values())  # By name.
        each = experiments if isinstance(experiments, list | tuple) else [experiments]
        specs = [getattr(experiment, "spec", experiment) for experiment in each]
        if len(specs) != 1 or not isinstance(specs[0], Mapping):
            expected = "one experiment: a dict such as {'config': {...}, 'num_samples': 10}"
            raise bad_value("experiments", expected, experiments)
        spec = specs[0]
        self.set_search_properties(
            self.metric, self.mode, spec.get("config", {}), num_samples=spec.get("num_samples", 1)
        )

    def next_trial(self) -> Trial | None:
        """Return the next trial; None if there is none now."""
        trial_id = f"{self._num_suggested:05d}"
        config = self.suggest(trial_id)
        return Trial(trial_id, config) if isinstance(config, Mapping) else None

    def is_finished(self) -> bool:
        """Whether there are no further trials."""
        total = self.total_samples
        return self._is_finished or (total is not None and self._num_suggested >= total)

    def set_finished(self) -> None:
        """Suggest no further trials."""
        self._is_finished = True

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "seed": self.seed}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state({name: value for name, value in state.items() if name != "seed"})
        self.seed = self.random_state = state["seed"]

    def save_to_dir(self, dirpath: str | os.PathLike[str], session_str: str = "default") -> None:
        super().save_to_dir(dirpath, session_str)

    def restore_from_dir(self, dirpath: str | os.PathLike[str]) -> None:
        super().restore_from_dir(dirpath)

    def configuration(self, number: int) -> dict[str, Any]:
        """Return the configuration of a trial by its number, from 0."""
        space = self._require_space
        begin = 0
        for sample, (point, end) in enumerate(zip(self._points, self._ends, strict=True)):
            if number < end:
                return space.draw_combination(number - begin, self._sample_name(number, sample), self.seed, point)
            begin = end
        sample, grid = divmod(number - begin, space.num_grid)
        return space.draw_combination(grid, self._sample_name(number, len(self._points) + sample), self.seed)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        self._live.discard(trial_id)

    def rebuild(self, trial_id: str, config: Mapping[str, Any]) -> None:
        self._add_trial(trial_id)

    def _add_trial(self, trial_id: str) -> None:
        self._num_suggested += 1
        self._live.add(trial_id)

    def _sample_name(self, number: int, sample: int) -> tuple[int | str, ...]:
        return ("sample", sample) if self.constant_grid_search else ("trial", number)

    @property
    def _require_space(self) -> Space:
        if self._space is None:
            raise ValueError(f"{type(self).__name__} has no search space\n\nhint: call set_search_properties() first")
        return self._space


def to_seed(random_state: Any) -> int | None:
    """Return the given seed, or draw one from a numpy generator; None if there is none."""
    if random_state is None or is_int(random_state):
        return random_state
    for method in ("integers", "randint"):  # Generator and RandomState.
        if hasattr(random_state, method):
            return int(getattr(random_state, method)(1 << 31))
    raise bad_value("random_state", "an integer or a numpy generator such as numpy.random.default_rng(0)", random_state)
