"""Search by Hyperopt's tree of Parzen estimators: `HyperOptSearch`."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from paceline._core.arguments import bad_value, join_or
from paceline._core.lazy_imports import import_extra
from paceline.tune.search.library_search import LibraryParameter, LibrarySearch
from paceline.tune.space import domains
from paceline.tune.space.domains import Domain, KeyedRandom

hyperopt = import_extra("hyperopt", "HyperOptSearch")

__all__ = ["HyperOptSearch"]


class HyperOptSearch(LibrarySearch):
    """Suggests configurations with Hyperopt: at random `n_initial_points` times, then by TPE with `gamma`.

    `space` may also be made of Hyperopt's own `hp.uniform`, `hp.choice` and so on.
    """

    _takes_normals = True

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        n_initial_points: int = 20,
        random_state_seed: int | None = None,
        gamma: float = 0.25,
    ) -> None:
        super().__init__(space, metric, mode, points_to_evaluate, seed=random_state_seed)
        self.n_initial_points = n_initial_points
        self.random_state_seed = random_state_seed
        self.gamma = gamma

    def _set_space(self, space: Any, name: str) -> None:
        super()._set_space(_convert_space(space), name)

    def _create(self, parameters: tuple[LibraryParameter, ...], seed: int) -> None:
        hp = hyperopt.hp
        space = {
            each.name: _make_options(each) if each.num_options else hp.uniform(each.name, 0, 1) for each in parameters
        }
        self._hp_domain = hyperopt.Domain(lambda drawn: drawn, space)
        self._hp_trials = hyperopt.Trials()
        self._hp_documents: dict[str, Any] = {}
        self._suggest = functools.partial(
            hyperopt.tpe.suggest, n_startup_jobs=self.n_initial_points, gamma=self.gamma, verbose=False
        )

    def _ask(self, trial_id: str) -> Mapping[str, Any]:
        seed = KeyedRandom(self._seed or 0, "hyperopt", self._num_asked).draw_below(1 << 31)
        (document,) = self._suggest(self._hp_trials.new_trial_ids(1), self._hp_domain, self._hp_trials, seed)
        self._hp_documents[trial_id] = document
        return {name: values[0] for name, values in document["misc"]["vals"].items()}

    def _tell(self, trial_id: str, units: dict[str, Any], loss: float | None, budget: float) -> None:
        document = self._hp_documents.pop(trial_id, None)
        if loss is None:
            return
        if document is None:
            (number,) = self._hp_trials.new_trial_ids(1)
            misc = {"tid": number, "cmd": self._hp_domain.cmd, "idxs": {}, "vals": {}}
            (document,) = self._hp_trials.new_trial_docs([number], [None], [None], [misc])
        number = document["tid"]
        document["misc"]["vals"] = {name: [value] for name, value in units.items()}
        document["misc"]["idxs"] = {name: [number] for name in units}
        document["state"] = hyperopt.JOB_STATE_DONE
        document["result"] = {"loss": loss, "status": hyperopt.STATUS_OK}
        self._hp_trials.insert_trial_docs([document])
        self._hp_trials.refresh()


def _make_options(parameter: LibraryParameter) -> Any:
    hp, numbers = hyperopt.hp, range(parameter.num_options)
    if isinstance(parameter.domain, _WeightedChoice):
        return hp.pchoice(parameter.name, list(zip(parameter.domain.weights, numbers, strict=True)))
    return hp.choice(parameter.name, list(numbers))


class _LogNormal(domains.Normal):
    """The values of `hp.lognormal` and `hp.qlognormal`."""

    log = True

    def pick(self, chance: KeyedRandom) -> float:
        return self.nearest(math.exp(NormalDist(self.mean, self.sd).inv_cdf(chance.draw_unit())))

    def contains(self, picked: Any) -> bool:
        return super().contains(picked) and picked >= 0


@dataclass(frozen=True, eq=False, repr=False)
class _WeightedChoice(domains.Categorical):
    """The options of `hp.pchoice`."""

    weights: tuple[float, ...] = ()

    def pick(self, chance: KeyedRandom) -> int:
        unit = chance.draw_unit() * sum(self.weights)
        return min(bisect.bisect(list(itertools.accumulate(self.weights)), unit), len(self.weights) - 1)


_DOMAINS: dict[str, Callable[..., Domain]] = {
    "uniform": domains.uniform,
    "quniform": domains.quniform,
    "loguniform": lambda low, high: domains.loguniform(math.exp(low), math.exp(high)),
    "qloguniform": lambda low, high, q: domains.qloguniform(math.exp(low), math.exp(high), q),
    "normal": domains.randn,
    "qnormal": domains.qrandn,
    "lognormal": _LogNormal,
    "qlognormal": _LogNormal,
    "randint": lambda *bounds: domains.randint(*(0, *bounds)[-2:]),
}


def _convert_space(space: Any) -> Any:
    """Convert the expressions of Hyperopt in a space; domains of `paceline.tune` and other values stay."""
    if isinstance(space, Mapping):
        return {name: _convert_space(value) for name, value in space.items()}
    if isinstance(space, list | tuple):
        return type(space)(_convert_space(value) for value in space)
    if not isinstance(space, hyperopt.pyll.Apply):
        return space
    if isinstance(space, hyperopt.pyll.Literal):
        return space.obj
    if space.name == "dict":
        return {name: _convert_space(value) for name, value in space.named_args}
    if space.name == "pos_args":
        return tuple(_convert_space(value) for value in space.pos_args)
    inner, casts = space, []
    while inner.name in ("float", "int"):
        casts.append(inner.name)
        inner = inner.pos_args[0]
    if inner.name == "switch" and inner.pos_args[0].pos_args[1].name == "randint":
        return domains.choice([_convert_space(option) for option in inner.pos_args[1:]])
    if inner.name == "switch":
        (weights,) = inner.pos_args[0].pos_args[1].pos_args
        options = tuple(_convert_space(option) for option in inner.pos_args[1:])
        return _WeightedChoice(options, tuple(map(float, _convert_space(weights))))
    name = inner.pos_args[1].name
    if name not in _DOMAINS:
        known = ("choice", "pchoice", "uniformint", *_DOMAINS)
        raise bad_value("an expression of Hyperopt", f"hp.{join_or(known)}", f"hp.{name}")
    drawn = inner.pos_args[1]
    arguments = [each.obj for each in (*drawn.pos_args, *(value for _, value in drawn.named_args))]
    if casts == ["int", "float"]:  # hp.uniformint: both ends are included.
        return domains.randint(int(arguments[0]), int(arguments[1]) + 1)
    return _DOMAINS[name](*arguments)
