"""Population based bandits: population based training, with a model that chooses a clone's hyperparameters.

The model is a Gaussian process of how much a trial's score changes per interval, given its hyperparameters, the time
and the starting score; a clone gets the hyperparameters with the highest upper confidence bound for its next interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline._core.arguments import bad_value, is_finite_number
from paceline.tune.schedulers import population
from paceline.tune.schedulers.pbt import PopulationBasedTraining
from paceline.tune.schedulers.population import MutatedConfig, PopulationMember
from paceline.tune.space.domains import Float, KeyedRandom

MIN_ROWS = 3
"""With fewer, a clone's hyperparameters are drawn at random: there is nothing to learn from."""


@dataclass(frozen=True)
class ParameterBound:
    path: population.Path
    lower: float
    upper: float
    is_whole: bool

    def to_share(self, config: Mapping[str, Any]) -> float:
        """Return the position of a configuration's parameter between its bounds, from 0 to 1."""
        value = population.get_at_path(config, self.path)
        if not is_finite_number(value):
            return 0.5
        return min(max((value - self.lower) / (self.upper - self.lower), 0.0), 1.0)

    def from_share(self, share: float, before: Any) -> float:
        value = min(max(self.lower + share * (self.upper - self.lower), self.lower), self.upper)
        whole = self.is_whole and (before is population.MISSING or isinstance(before, int))
        return round(value) if whole else float(value)


@dataclass(frozen=True)
class IntervalObservation:
    """What happened to a trial in one interval."""

    shares: tuple[float, ...]
    """Its hyperparameters, as positions between their bounds."""
    start_score: float
    """Larger is better."""
    time: float
    """At the end of the interval."""
    gain: float
    """Change of the score per interval."""


class PB2(PopulationBasedTraining):
    """Every `perturbation_interval`, a trial among the worst continues from one of the best, as a model suggests.

        scheduler = PB2(
            time_attr="training_iteration",
            perturbation_interval=5,
            hyperparam_bounds={"lr": [1e-4, 1e-1], "optim": {"momentum": [0.0, 0.99]}},
        )

    `hyperparam_bounds` holds the lowest and highest value of each hyperparameter; an integer in the configuration with
    integer bounds stays an integer. Everything else is as in `PopulationBasedTraining`.
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        hyperparam_bounds: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        if not hyperparam_bounds or not isinstance(hyperparam_bounds, Mapping):
            expected = "a dict with the lowest and highest value of each hyperparameter"
            raise bad_value("hyperparam_bounds", expected, hyperparam_bounds, "use {'lr': [1e-4, 1e-1]}")
        self.hyperparam_bounds = hyperparam_bounds
        self._bounds = tuple(_parse_bounds(hyperparam_bounds))
        domains: dict[str, Any] = {}
        for bound in self._bounds:
            population.set_at_path(domains, bound.path, Float(bound.lower, bound.upper))
        super().__init__(
            time_attr,
            metric,
            mode,
            perturbation_interval,
            hyperparam_mutations=domains,
            quantile_fraction=quantile_fraction,
            custom_explore_fn=custom_explore_fn,
            log_config=log_config,
            require_attrs=require_attrs,
            synch=synch,
            seed=seed,
        )
        self._rows: list[IntervalObservation] = []
        self._interval_starts: dict[str, tuple[float, float]] = {}
        """For each trial, time and score at the start of its interval."""
        self._chosen_shares: dict[str, tuple[float, ...]] = {}
        """The last choice for each clone, as positions between the bounds."""

    def completed(self, trial_id: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
        drawn = super().completed(trial_id, config)
        after = population.copy_config(drawn)
        for bound in self._bounds:
            if population.get_at_path(config, bound.path) is population.MISSING and bound.is_whole:
                population.set_at_path(after, bound.path, round(population.get_at_path(drawn, bound.path)))
        return after

    def _observe_value(self, member: PopulationMember, value: float) -> None:
        if math.isfinite(value):
            self._interval_starts.setdefault(member.trial_id, (member.time, self.to_score(value)))

    def _rank_member(self, member: PopulationMember, value: float) -> None:
        if math.isfinite(value):
            score = self.to_score(value)
            began, start_score = self._interval_starts.get(member.trial_id, (math.inf, 0.0))
            if member.time > began:
                gain = (score - start_score) / ((member.time - began) / self.perturbation_interval)
                self._rows.append(
                    IntervalObservation(self._shares(member.trial.config), start_score, member.time, gain)
                )
            self._interval_starts[member.trial_id] = (member.time, score)
        super()._rank_member(member, value)

    def _explore(self, member: PopulationMember, donor: PopulationMember, chance: KeyedRandom) -> MutatedConfig:
        # Its next interval starts with its first report as a clone, at the score it has then.
        self._interval_starts.pop(member.trial_id, None)
        shares = self._choose_shares(member, donor, chance)
        self._chosen_shares[member.trial_id] = tuple(shares)
        config = population.copy_config(donor.trial.config)
        changes = []
        for bound, share in zip(self._bounds, shares, strict=True):
            before = population.get_at_path(config, bound.path)
            after = bound.from_share(share, before)
            population.set_at_path(config, bound.path, after)
            changes.append(population.ConfigChange(bound.path, before, after))
        return config, changes

    def _choose_shares(self, member: PopulationMember, donor: PopulationMember, chance: KeyedRandom) -> list[float]:
        if len(self._rows) < MIN_ROWS:
            return [chance.draw_unit() for _ in self._bounds]
        import numpy as np

        from paceline.tune.schedulers.gaussian_process import MAX_ROWS, GaussianProcess, maximize_upper_bound

        rows = self._rows[-MAX_ROWS:]
        scores = [row.start_score for row in rows]
        least, spread = min(scores), (max(scores) - min(scores)) or 1.0
        times = np.array([row.time for row in rows]) / self.perturbation_interval
        observed = np.array([[*row.shares, (row.start_score - least) / spread] for row in rows])
        process = GaussianProcess.fit(observed, times, np.array([row.gain for row in rows]))
        donor_score = donor.interval_score if is_finite_number(donor.interval_score) else least
        pending = [
            [*self._next_shares(one), (one.interval_score - least) / spread]
            for one in self._population.live_members()
            if one is not member and is_finite_number(one.interval_score)
        ][:MAX_ROWS]
        best = maximize_upper_bound(
            process,
            time=donor.time / self.perturbation_interval + 1,
            context=np.array([(donor_score - least) / spread]),
            pending=np.array(pending).reshape(len(pending), len(self._bounds) + 1),
            generator=np.random.default_rng(chance.draw_below(1 << 63)),
        )
        return [float(share) for share in best]

    def _shares(self, config: Mapping[str, Any]) -> tuple[float, ...]:
        return tuple(bound.to_share(config) for bound in self._bounds)

    def _next_shares(self, member: PopulationMember) -> tuple[float, ...]:
        """Positions for the current interval, or for the next one if the trial is about to be cloned."""
        return self._chosen_shares[member.trial_id] if member.is_being_cloned else self._shares(member.trial.config)


def _parse_bounds(spec: Mapping[str, Any]) -> Iterator[ParameterBound]:
    for path, argument, value in population.iter_leaves(spec, "hyperparam_bounds"):
        if not isinstance(value, list | tuple) or len(value) != 2 or not all(map(is_finite_number, value)):
            raise bad_value(argument, "a list of the lowest and the highest value, two finite numbers", value)
        lower, upper = value
        if not lower < upper:
            raise bad_value(argument, "a list with the lowest value below the highest", value)
        yield ParameterBound(path, lower, upper, is_whole=isinstance(lower, int) and isinstance(upper, int))
