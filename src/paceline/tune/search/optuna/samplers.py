"""Optuna's samplers as a search uses them.

With a name the sampler is made afresh for each trial, from the seed of the search and the number of the trial: what it
suggests then depends on these and on what was told before, and on nothing that would be lost with the driver.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from paceline.tune.search.optuna.quiet import quiet

SamplerName = Literal["tpe", "gp", "cmaes", "qmc", "nsgaii", "nsgaiii", "random"]

_SEEDS = 1 << 32


@dataclass(frozen=True)
class Kind:
    """A sampler that has a name here."""

    make: Callable[[int, int], BaseSampler]
    """From a seed of this trial, and the seed of the search."""
    leaves_marks: bool = False
    """Its sampling leaves marks on the study that it relies on later, so that it cannot be skipped."""
    learns_from_stopped: bool = True
    """Told as pruned, with its values on the way, a trial teaches it something, or nothing teaches it anything."""
    several: bool = True
    """It can search for several objectives."""
    needs: str | None = None
    """A package that Optuna does not bring."""


KINDS: Mapping[str, Kind] = {
    # What runs is taken for no better than what has ended, so that trials at the same time are not all alike.
    "tpe": Kind(lambda trial, search: optuna.samplers.TPESampler(seed=trial, constant_liar=True)),
    "gp": Kind(
        lambda trial, search: optuna.samplers.GPSampler(seed=trial),
        learns_from_stopped=False,
    ),
    "cmaes": Kind(
        lambda trial, search: optuna.samplers.CmaEsSampler(seed=trial, consider_pruned_trials=True),
        leaves_marks=True,
        several=False,
        needs="cmaes",
    ),
    # Points of one sequence come from one seed; what it cannot give, parameters under a condition, must not repeat.
    "qmc": Kind(
        lambda trial, search: optuna.samplers.QMCSampler(
            scramble=True, seed=search, independent_sampler=optuna.samplers.RandomSampler(trial)
        ),
        leaves_marks=True,
    ),
    "nsgaii": Kind(
        lambda trial, search: optuna.samplers.NSGAIISampler(seed=trial), leaves_marks=True, learns_from_stopped=False
    ),
    "nsgaiii": Kind(
        lambda trial, search: optuna.samplers.NSGAIIISampler(seed=trial), leaves_marks=True, learns_from_stopped=False
    ),
    "random": Kind(lambda trial, search: optuna.samplers.RandomSampler(trial)),
}

_ENDS_ITSELF = (optuna.samplers.GridSampler, optuna.samplers.BruteForceSampler)
_LEARNS_ONLY_FROM_WHOLE = (
    optuna.samplers.GPSampler,
    optuna.samplers.NSGAIISampler,
    optuna.samplers.NSGAIIISampler,
)


class Samplers:
    """The sampler for each trial."""

    def __init__(self, sampler: str | BaseSampler, objectives: int, seed: int) -> None:
        self._given = sampler if isinstance(sampler, BaseSampler) else None
        self._kind = KINDS[sampler] if isinstance(sampler, str) else None
        self._seed = seed
        if isinstance(sampler, str) and objectives > 1 and not KINDS[sampler].several:
            others = ", ".join(repr(name) for name, kind in KINDS.items() if kind.several)
            raise ValueError(
                f"sampler={sampler!r} searches for one objective, and there are {objectives} metrics: use {others}"
            )

    @property
    def can_skip(self) -> bool:
        """A trial whose parameters are all known need not be sampled."""
        return self._kind is not None and not self._kind.leaves_marks

    @property
    def learns_from_stopped(self) -> bool:
        if self._kind is not None:
            return self._kind.learns_from_stopped
        return not isinstance(self._given, _LEARNS_ONLY_FROM_WHOLE)

    def of(self, number: int) -> BaseSampler:
        """Of the trial with this number."""
        if self._kind is None:
            assert self._given is not None
            return self._given
        with quiet():
            return self._kind.make(derived(self._seed, number), derived(self._seed, -1))


class Known(BaseSampler):
    """Gives the parameters that are known already, and lets a sampler suggest the others."""

    def __init__(self, inner: BaseSampler, known: Mapping[str, Any], skip: bool = False) -> None:
        self._inner = inner
        self._known = known
        self._skip = skip

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {} if self._skip else self._inner.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if self._skip:
            return {}
        sampled = self._inner.sample_relative(study, trial, search_space)
        return {name: self._known.get(name, value) for name, value in sampled.items()}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if self._skip and param_name in self._known:
            return self._known[param_name]
        # Also where its answer is not needed: a sampler of the user's must have drawn as often as it did before.
        sampled = self._inner.sample_independent(study, trial, param_name, param_distribution)
        return self._known.get(param_name, sampled)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._inner.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:
        self._inner.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        self._inner.reseed_rng()


def derived(seed: int, number: int) -> int:
    """A seed of its own for each number."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:8], "big") % _SEEDS


def checked_sampler(sampler: Any) -> str | BaseSampler:
    """What was given as the sampler, or a clear error."""
    if sampler is None:
        return "tpe"
    if isinstance(sampler, _ENDS_ITSELF):
        raise ValueError(
            f"sampler={type(sampler).__name__} ends the study by itself, which only Optuna's own loop lets it do\n\n"
            "hint: without a search_alg, tune.grid_search and tune.choice try all values"
        )
    if isinstance(sampler, BaseSampler):
        return sampler
    if isinstance(sampler, str) and sampler in KINDS:
        needs = KINDS[sampler].needs
        if needs is not None and importlib.util.find_spec(needs) is None:
            raise ImportError(
                f"sampler={sampler!r} needs the package {needs}, which is missing\n\nhint: pip install {needs}",
                name=needs,
            )
        return sampler
    raise ValueError(f"sampler={sampler!r} is neither a sampler of Optuna's nor one of {', '.join(map(repr, KINDS))}")
