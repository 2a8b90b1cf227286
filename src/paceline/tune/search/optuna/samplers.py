"""Optuna's samplers as a search uses them, and its logging, which is silenced during this package's own calls only.

A sampler given by name is created anew for each trial, from the search's seed and the trial's number. So its
suggestions depend only on these and on earlier results, and on nothing that would be lost with the driver.

The user's own use of Optuna logs and warns as before: the log filter passes everything outside our calls, and the
global verbosity is not changed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from paceline._core.arguments import bad_value, join_or

_SEEDS = 1 << 32


@dataclass(frozen=True)
class SamplerKind:
    make: Callable[[int, int], BaseSampler]
    """Creates the sampler from the trial's seed and the search's seed."""
    writes_study_state: bool = False
    """Its sampling stores state in the study that it needs later, so it cannot be skipped."""
    learns_from_stopped: bool = True
    """It learns from pruned trials and their intermediate values, or does not learn at all."""
    supports_multiple_objectives: bool = True
    required_package: str | None = None
    """A package that is not a dependency of Optuna."""


_make_genetic_kind = partial(SamplerKind, writes_study_state=True, learns_from_stopped=False)

SAMPLER_KINDS: Mapping[str, SamplerKind] = {
    # Running trials count as no better than finished ones, so that concurrent trials differ.
    "tpe": SamplerKind(lambda trial, search: optuna.samplers.TPESampler(seed=trial, constant_liar=True)),
    "gp": SamplerKind(lambda trial, search: optuna.samplers.GPSampler(seed=trial), learns_from_stopped=False),
    "cmaes": SamplerKind(
        lambda trial, search: optuna.samplers.CmaEsSampler(seed=trial, consider_pruned_trials=True),
        writes_study_state=True,
        supports_multiple_objectives=False,
        required_package="cmaes",
    ),
    # The points of one sequence need one seed; conditional parameters, which it cannot provide, must not repeat.
    "qmc": SamplerKind(
        lambda trial, search: optuna.samplers.QMCSampler(
            scramble=True, seed=search, independent_sampler=optuna.samplers.RandomSampler(trial)
        ),
        writes_study_state=True,
    ),
    "nsgaii": _make_genetic_kind(lambda trial, search: optuna.samplers.NSGAIISampler(seed=trial)),
    "nsgaiii": _make_genetic_kind(lambda trial, search: optuna.samplers.NSGAIIISampler(seed=trial)),
    "random": SamplerKind(lambda trial, search: optuna.samplers.RandomSampler(trial)),
}

_ENDS_ITSELF = (optuna.samplers.GridSampler, optuna.samplers.BruteForceSampler)
_LEARNS_ONLY_FROM_WHOLE = (optuna.samplers.GPSampler, optuna.samplers.NSGAIISampler, optuna.samplers.NSGAIIISampler)


class TrialSamplers:
    def __init__(self, sampler: str | BaseSampler, objectives: int, seed: int) -> None:
        self._sampler = sampler
        self._kind = SAMPLER_KINDS[sampler] if isinstance(sampler, str) else None
        self._seed = seed
        if self._kind is not None and objectives > 1 and not self._kind.supports_multiple_objectives:
            others = ", ".join(repr(name) for name, kind in SAMPLER_KINDS.items() if kind.supports_multiple_objectives)
            raise ValueError(
                f"sampler={sampler!r} supports one objective, got {objectives} metrics\n\nhint: use {others}"
            )

    @property
    def can_skip(self) -> bool:
        """Whether sampling can be skipped for a trial whose parameters are all known."""
        return self._kind is not None and not self._kind.writes_study_state

    @property
    def learns_from_stopped(self) -> bool:
        if self._kind is not None:
            return self._kind.learns_from_stopped
        return not isinstance(self._sampler, _LEARNS_ONLY_FROM_WHOLE)

    def make_sampler(self, number: int) -> BaseSampler:
        if self._kind is None:
            assert isinstance(self._sampler, BaseSampler)
            return self._sampler
        with silence_optuna():
            return self._kind.make(derive_seed(self._seed, number), derive_seed(self._seed, -1))


@dataclass(eq=False)
class KnownParametersSampler(BaseSampler):
    """Returns known parameters and lets another sampler suggest the rest."""

    _inner: BaseSampler
    _known: Mapping[str, Any]
    _skip: bool = False

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
        # Sample even if the result is not needed: the state of a user's sampler must advance as it did before.
        sampled = self._inner.sample_independent(study, trial, param_name, param_distribution)
        return self._known.get(param_name, sampled)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self._inner.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:
        self._inner.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        self._inner.reseed_rng()


def derive_seed(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{number}".encode()).digest()[:8], "big") % _SEEDS


def check_sampler(sampler: Any) -> str | BaseSampler:
    """Return the given sampler, or raise a clear error."""
    if sampler is None:
        return "tpe"
    if isinstance(sampler, _ENDS_ITSELF):
        raise ValueError(
            f"{type(sampler).__name__} ends the study by itself, which works only in Optuna's own loop\n\n"
            "hint: without a search_alg, tune.grid_search tries all values"
        )
    if isinstance(sampler, BaseSampler):
        return sampler
    if isinstance(sampler, str) and sampler in SAMPLER_KINDS:
        package = SAMPLER_KINDS[sampler].required_package
        if package is not None and importlib.util.find_spec(package) is None:
            text = f"sampler={sampler!r} needs the package {package}\n\nhint: pip install {package}"
            raise ImportError(text, name=package)
        return sampler
    raise bad_value("sampler", f"an Optuna sampler, {join_or(map(repr, SAMPLER_KINDS))}", sampler)


_is_own_call: ContextVar[bool] = ContextVar("paceline_optuna_call", default=False)


def _passes_filter(record: logging.LogRecord) -> bool:
    return not _is_own_call.get() or record.levelno >= logging.ERROR


@contextmanager
def silence_optuna() -> Iterator[None]:
    """Suppress all but errors of Optuna. Warning filters are process-wide: use it only in the driver's thread."""
    token = _is_own_call.set(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            warnings.filterwarnings("ignore", category=UserWarning, module=r"optuna(\.|$)")
            yield
    finally:
        _is_own_call.reset(token)


@contextmanager
def unsilence_optuna() -> Iterator[None]:
    """Restore Optuna's output inside `silence_optuna`, for a call to a user's function."""
    token = _is_own_call.set(False)
    try:
        yield
    finally:
        _is_own_call.reset(token)


def _attach_filter() -> None:
    # A logger's filter does not apply to records of its child loggers, and some Optuna modules are imported late and
    # log at once: so each logger is created with the filter before its module requests it.
    root = Path(optuna.__file__).parent
    for file in root.rglob("*.py"):
        parts = file.relative_to(root.parent).with_suffix("").parts
        logging.getLogger(".".join(part for part in parts if part != "__init__")).addFilter(_passes_filter)


_attach_filter()
