"""Population based bandits: as population based training, but a model says where a clone's hyperparameters go.

The model is a Gaussian process of how much a trial's score has changed per interval, given its hyperparameters, when,
and from where; a clone gets the hyperparameters with the highest upper confidence bound for its next interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.tune.schedulers.mutations import MISSING, Change, Path, at_path, copied, put
from paceline.tune.schedulers.pbt import PopulationBasedTraining
from paceline.tune.schedulers.population import Member
from paceline.tune.space.chance import Chance
from paceline.tune.space.domains import Float

LEAST_ROWS = 3
"""With fewer, a clone's hyperparameters are drawn: there is nothing to learn from."""


@dataclass(frozen=True)
class Bound:
    path: Path
    lower: float
    upper: float
    is_whole: bool

    def share(self, config: Mapping[str, Any]) -> float:
        """Where the parameter of a configuration lies between its bounds, from 0 to 1."""
        value = at_path(config, self.path)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return 0.5
        return min(max((value - self.lower) / (self.upper - self.lower), 0.0), 1.0)

    def at(self, share: float, before: Any) -> float:
        value = min(max(self.lower + share * (self.upper - self.lower), self.lower), self.upper)
        whole = self.is_whole and (before is MISSING or isinstance(before, int))
        return round(value) if whole else float(value)


@dataclass(frozen=True)
class Row:
    """What became of a trial in one interval."""

    shares: tuple[float, ...]
    """Its hyperparameters between their bounds."""
    began: float
    """Its score at the beginning, larger is better."""
    time: float
    """At the end."""
    gain: float
    """How much the score had changed, per interval."""


class PB2(PopulationBasedTraining):
    """Every `perturbation_interval`, a trial among the worst goes on from one of the best, where a model points.

        scheduler = PB2(
            time_attr="training_iteration",
            perturbation_interval=5,
            hyperparam_bounds={"lr": [1e-4, 1e-1], "optim": {"momentum": [0.0, 0.99]}},
        )

    `hyperparam_bounds` has the lowest and the highest value of each hyperparameter; one whose bounds are whole numbers,
    and which is one in the configuration, stays one. All else is as for `PopulationBasedTraining`.
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
            raise ValueError(
                f"hyperparam_bounds={hyperparam_bounds!r}: there is nothing to choose\n\n"
                "hint: give the lowest and the highest value of each hyperparameter, as {'lr': [1e-4, 1e-1]}"
            )
        self._bounds = tuple(_bounds(hyperparam_bounds, ()))
        super().__init__(
            time_attr,
            metric,
            mode,
            perturbation_interval,
            hyperparam_mutations=_nested({bound.path: Float(bound.lower, bound.upper) for bound in self._bounds}),
            quantile_fraction=quantile_fraction,
            custom_explore_fn=custom_explore_fn,
            log_config=log_config,
            require_attrs=require_attrs,
            synch=synch,
            seed=seed,
        )
        self._rows: list[Row] = []
        self._began: dict[str, tuple[float, float]] = {}
        """Of each trial, time and score at the beginning of its interval."""
        self._asked_for: dict[str, tuple[float, ...]] = {}
        """What was last chosen for each clone, between the bounds."""

    def completed(self, trial_id: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
        drawn = super().completed(trial_id, config)
        after = copied(drawn)
        for bound in self._bounds:
            if at_path(config, bound.path) is MISSING and bound.is_whole:
                put(after, bound.path, round(at_path(drawn, bound.path)))
        return after

    def _learn(self, member: Member, score: float) -> None:
        if math.isfinite(score):
            self._began.setdefault(member.trial_id, (member.time, self._signed(score)))

    def _rank(self, member: Member, score: float) -> None:
        began = self._began.get(member.trial_id)
        if began is not None and math.isfinite(score) and member.time > began[0]:
            num_intervals = (member.time - began[0]) / self.perturbation_interval
            gain = (self._signed(score) - began[1]) / num_intervals
            self._rows.append(Row(self._shares(member.trial.config), began[1], member.time, gain))
        if math.isfinite(score):
            self._began[member.trial_id] = (member.time, self._signed(score))
        super()._rank(member, score)

    def _explored(self, member: Member, donor: Member, chance: Chance) -> tuple[dict[str, Any], list[Change]]:
        # Its next interval begins with its first report as a clone, from where that stands.
        self._began.pop(member.trial_id, None)
        shares = self._chosen(member, donor, chance)
        self._asked_for[member.trial_id] = tuple(shares)
        config = copied(donor.trial.config)
        changes = []
        for bound, share in zip(self._bounds, shares, strict=True):
            before = at_path(config, bound.path)
            after = bound.at(share, before)
            put(config, bound.path, after)
            changes.append(Change(bound.path, before, after))
        return config, changes

    def _chosen(self, member: Member, donor: Member, chance: Chance) -> list[float]:
        if len(self._rows) < LEAST_ROWS:
            return [chance.unit() for _ in self._bounds]
        import numpy as np

        from paceline.tune.schedulers.gaussian import MOST_ROWS, Process, chosen_by_bound

        rows = self._rows[-MOST_ROWS:]
        scores = [row.began for row in rows]
        least, spread = min(scores), (max(scores) - min(scores)) or 1.0
        times = np.array([row.time for row in rows]) / self.perturbation_interval
        seen = np.array([[*row.shares, (row.began - least) / spread] for row in rows])
        process = Process.fitted(seen, times, np.array([row.gain for row in rows]))
        standing = donor.standing if donor.standing is not None and math.isfinite(donor.standing) else least
        pending = [
            [*self._next_shares(one), (one.standing - least) / spread]
            for one in self._population.live()
            if one is not member and one.standing is not None and math.isfinite(one.standing)
        ][:MOST_ROWS]
        found = chosen_by_bound(
            process,
            time=donor.time / self.perturbation_interval + 1,
            given=np.array([(standing - least) / spread]),
            pending=np.array(pending).reshape(len(pending), len(self._bounds) + 1),
            generator=np.random.default_rng(chance.below(1 << 63)),
        )
        return [float(share) for share in found]

    def _shares(self, config: Mapping[str, Any]) -> tuple[float, ...]:
        return tuple(bound.share(config) for bound in self._bounds)

    def _next_shares(self, member: Member) -> tuple[float, ...]:
        """Of the interval that is under way, or about to begin."""
        return self._asked_for[member.trial_id] if member.is_moving else self._shares(member.trial.config)

    def _signed(self, score: float) -> float:
        return score if self._mode == "max" else -score


def _bounds(spec: Mapping[str, Any], above: Path) -> Iterator[Bound]:
    for key, value in spec.items():
        where = f"hyperparam_bounds[{'/'.join((*above, str(key)))!r}]={value!r}"
        if not isinstance(key, str):
            raise ValueError(f"hyperparam_bounds has the key {key!r}: the keys of a configuration are texts")
        if isinstance(value, Mapping):
            yield from _bounds(value, (*above, key))
            continue
        if not isinstance(value, list | tuple) or len(value) != 2 or not all(map(_is_bound, value)):
            raise ValueError(f"{where} is not a list of the lowest and the highest value, two finite numbers")
        if not value[0] < value[1]:
            raise ValueError(f"{where}: the lowest value has to be below the highest")
        lower, upper = value
        yield Bound((*above, key), lower, upper, is_whole=isinstance(lower, int) and isinstance(upper, int))


def _is_bound(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _nested(values: Mapping[Path, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    for path, value in values.items():
        put(spec, path, value)
    return spec
