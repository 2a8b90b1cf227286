"""Search by a Gaussian process of the bayesian-optimization package: `BayesOptSearch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline._core.arguments import is_number
from paceline._core.lazy_imports import import_extra
from paceline.tune.search.library_search import LibraryParameter, LibrarySearch
from paceline.tune.space.domains import KeyedRandom, uniform

bayes_opt = import_extra("bayes_opt", "BayesOptSearch")

__all__ = ["BayesOptSearch"]


class BayesOptSearch(LibrarySearch):
    """Suggests at random `random_search_steps` times, then by a Gaussian process and an upper confidence bound.

    An option is a number to the process, so it is for spaces of numbers rather than of choices. `utility_kwargs` are
    `kappa`, `kind` and `xi` of the package's utility function. In `space`, two numbers are the bounds of a parameter.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        utility_kwargs: Mapping[str, Any] | None = None,
        random_state: int = 42,
        random_search_steps: int = 10,
        verbose: int = 0,
        patience: int = 5,
        skip_duplicate: bool = True,
        analysis: Any = None,
    ) -> None:
        super().__init__(space, metric, mode, points_to_evaluate, seed=random_state)
        self.utility_kwargs = utility_kwargs
        self.random_state = random_state
        self.random_search_steps = random_search_steps
        self.verbose = verbose
        self.patience = patience
        """How often a suggestion that was made before is replaced by another, if `skip_duplicate`."""
        self.skip_duplicate = skip_duplicate
        self.analysis = analysis
        """Results of an earlier search to learn from."""

    def _set_space(self, space: Any, name: str) -> None:
        if isinstance(space, Mapping):
            space = {key: uniform(*each) if _is_bounds(each) else each for key, each in space.items()}
        super()._set_space(space, name)

    def _create(self, parameters: tuple[LibraryParameter, ...], seed: int) -> None:
        bounds = {each.name: (0.0, 1.0) for each in parameters}
        arguments: dict[str, Any] = {"random_state": seed, "verbose": self.verbose, "allow_duplicate_points": True}
        utility = {"kind": "ucb", "kappa": 2.576, "xi": 0.0, **(self.utility_kwargs or {})}
        self._suggest_arguments: tuple[Any, ...] = ()
        if hasattr(bayes_opt, "UtilityFunction"):  # Before version 2.
            self._suggest_arguments = (bayes_opt.UtilityFunction(**utility),)
        elif utility["kind"] == "ucb":
            arguments["acquisition_function"] = bayes_opt.acquisition.UpperConfidenceBound(kappa=utility["kappa"])
        else:
            kinds = {"ei": "ExpectedImprovement", "poi": "ProbabilityOfImprovement"}
            arguments["acquisition_function"] = getattr(bayes_opt.acquisition, kinds[utility["kind"]])(xi=utility["xi"])
        self._optimizer = bayes_opt.BayesianOptimization(None, bounds, **arguments)
        self._asked: set[tuple[float, ...]] = set()
        if self.analysis is not None:
            self.add_evaluated_trials(self.analysis, str(self.metric))

    def _ask(self, trial_id: str) -> Mapping[str, Any]:
        chance = KeyedRandom(self._seed or 0, "bayesopt", self._num_asked)
        asked = {each.name: chance.draw_unit() for each in self._parameters}
        if self._num_asked >= self.random_search_steps and len(self._optimizer.space):
            for _ in range(self.patience):
                asked = self._optimizer.suggest(*self._suggest_arguments)
                if not self.skip_duplicate or tuple(asked.values()) not in self._asked:
                    break
        self._asked.add(tuple(asked.values()))
        options = {each.name: each.num_options for each in self._parameters if each.num_options}
        return {
            name: min(int(value * options[name]), options[name] - 1) if name in options else value
            for name, value in asked.items()
        }

    def _tell(self, trial_id: str, units: dict[str, Any], loss: float | None, budget: float) -> None:
        if loss is not None:
            options = {each.name: each.num_options for each in self._parameters if each.num_options}
            point = {name: (v + 0.5) / options[name] if name in options else v for name, v in units.items()}
            self._optimizer.register(params=point, target=-loss)


def _is_bounds(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(is_number(each) for each in value)
