"""Grid and random search: the default searcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.tune.search.searcher import Searcher
from paceline.tune.space.points import Point
from paceline.tune.space.space import Space


class BasicVariantGenerator(Searcher):
    """Every combination of `grid_search`, with random values, `num_samples` times over.

    `points_to_evaluate` come first: full or partial configurations, each in place of one of the `num_samples`. Values
    that a point leaves open are drawn, and all grid combinations that it leaves open are tried. At most
    `max_concurrent` trials run at a time; 0 means as many as the resources allow. With `constant_grid_search`, the
    random values are the same for all combinations of the grid. `random_state` is a seed, or a numpy generator to draw
    one from.

    The configuration of a trial depends only on the space, the seed and the trial's number, not on results.
    """

    needs_metric = False
    counts_samples = True

    def __init__(
        self,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_concurrent: int = 0,
        constant_grid_search: bool = False,
        random_state: Any = None,
    ) -> None:
        super().__init__()
        self.points_to_evaluate = _check_points(points_to_evaluate)
        self.max_concurrent = _check_limit(max_concurrent)
        if not isinstance(constant_grid_search, bool):
            raise ValueError(f"constant_grid_search={constant_grid_search!r} is not True or False")
        self.constant_grid_search = constant_grid_search
        self.random_state = to_seed(random_state)
        self._space: Space | None = None
        self._points: tuple[Point, ...] = ()
        self._ends: tuple[int, ...] = ()
        self._num_samples = 1
        self._seed = 0
        self._num_suggested = 0
        self._live: set[str] = set()

    @property
    def seed(self) -> int:
        """The seed of all randomness."""
        return self._seed

    @property
    def total_samples(self) -> int | None:
        """How many trials there will be; None: unlimited."""
        if self._num_samples == -1:
            return None
        rest = self._num_samples - len(self._points)
        return (self._ends[-1] if self._ends else 0) + rest * self._require_space.num_grid

    def set_search_properties(
        self,
        metric: str | list[str] | None,
        mode: str | list[str] | None,
        config: Mapping[str, Any] | Space,
        **spec: Any,
    ) -> bool:
        num_samples, seed = spec.get("num_samples", 1), spec.get("seed")
        if isinstance(num_samples, bool) or not isinstance(num_samples, int) or (num_samples < 1 and num_samples != -1):
            raise ValueError(f"num_samples={num_samples!r} is not a whole number of 1 or more, or -1 for no end")
        num_points = len(self.points_to_evaluate)
        if 0 <= num_samples < num_points:
            raise ValueError(
                f"points_to_evaluate has {num_points} points and num_samples={num_samples}: each point is one of the "
                f"samples\n\nhint: use num_samples={num_points} or more, or fewer points"
            )
        space = config if isinstance(config, Space) else Space(config)
        points = [
            space.parse_point(point, f"points_to_evaluate[{i}]") for i, point in enumerate(self.points_to_evaluate)
        ]
        ends: list[int] = []
        for point in points:
            ends.append((ends[-1] if ends else 0) + space.num_grid_at(point))
        self.metric, self.mode = metric, mode
        self._space, self._points, self._ends = space, tuple(points), tuple(ends)
        self._num_samples = num_samples
        self._seed = next((one for one in (self.random_state, seed) if one is not None), 0)
        return True

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        self.max_concurrent = _check_limit(max_concurrent)
        return True

    def suggest(self, trial_id: str) -> Mapping[str, Any] | str | None:
        total = self.total_samples
        if total is not None and self._num_suggested >= total:
            return self.FINISHED
        if self.max_concurrent and len(self._live) >= self.max_concurrent:
            return None
        config = self.configuration(self._num_suggested)
        self._count_samples(trial_id)
        return config

    def configuration(self, number: int) -> dict[str, Any]:
        """Return the configuration of a trial by its number, from 0."""
        space = self._require_space
        begin = 0
        for sample, (point, end) in enumerate(zip(self._points, self._ends, strict=True)):
            if number < end:
                return space.draw_combination(number - begin, self._sample_name(number, sample), self._seed, point)
            begin = end
        sample, grid = divmod(number - begin, space.num_grid)
        return space.draw_combination(grid, self._sample_name(number, len(self._points) + sample), self._seed)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        self._live.discard(trial_id)

    def rebuild(self, trial_id: str, config: Mapping[str, Any]) -> None:
        self._count_samples(trial_id)

    def _count_samples(self, trial_id: str) -> None:
        self._num_suggested += 1
        self._live.add(trial_id)

    def _sample_name(self, number: int, sample: int) -> tuple[int | str, ...]:
        return ("sample", sample) if self.constant_grid_search else ("trial", number)

    @property
    def _require_space(self) -> Space:
        if self._space is None:
            raise ValueError(f"{type(self).__name__} was asked before set_search_properties gave it a search space")
        return self._space


def to_seed(random_state: Any) -> int | None:
    """Return the given seed, or draw one from a numpy generator; None if there is none."""
    if random_state is None:
        return None
    if isinstance(random_state, int) and not isinstance(random_state, bool):
        return random_state
    for method in ("integers", "randint"):  # Generator and RandomState.
        if hasattr(random_state, method):
            return int(getattr(random_state, method)(1 << 31))
    raise ValueError(
        f"random_state={random_state!r} is not a whole number or a generator of numpy, such as "
        "numpy.random.default_rng(0)"
    )


def _check_points(points: Any) -> list[Mapping[str, Any]]:
    if points is None:
        return []
    if not isinstance(points, Sequence) or isinstance(points, str):
        raise ValueError(f"points_to_evaluate={points!r} is not a list of configurations")
    for index, point in enumerate(points):
        if not isinstance(point, Mapping):
            raise ValueError(f"points_to_evaluate[{index}]={point!r} is not a dict of values")
    return [dict(point) for point in points]


def _check_limit(max_concurrent: Any) -> int:
    if isinstance(max_concurrent, bool) or not isinstance(max_concurrent, int) or max_concurrent < 0:
        raise ValueError(f"max_concurrent={max_concurrent!r} is not a whole number of trials, or 0 for no limit")
    return max_concurrent
