"""Search by Nevergrad's optimizers: `NevergradSearch`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline._core.arguments import bad_value
from paceline._core.lazy_imports import import_extra
from paceline.tune.search.library_search import LibraryParameter, LibrarySearch
from paceline.tune.space import domains
from paceline.tune.space.domains import Domain

nevergrad = import_extra("nevergrad", "NevergradSearch")

__all__ = ["NevergradSearch"]


class NevergradSearch(LibrarySearch):
    """Suggests configurations with a Nevergrad optimizer: a class or its name; `"OnePlusOne"` by default.

    `optimizer_kwargs` are its arguments; its `budget` is the number of trials, or 100 if that is unlimited. `space` may
    also be made of Nevergrad's own parameters with bounds: `ng.p.Dict(lr=ng.p.Log(lower=1e-4, upper=1))`. Of an
    `optimizer` object, its class, budget and parameters are used; `space` may be a list of names for its array.
    """

    def __init__(
        self,
        optimizer: str | Callable[..., Any] | Any = None,
        optimizer_kwargs: Mapping[str, Any] | None = None,
        space: Mapping[str, Any] | Sequence[str] | Any = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        make = optimizer if optimizer is not None else nevergrad.optimizers.OnePlusOne
        self._budget: int | None = None
        self._array: Any = None
        """The parameters of an optimizer that was given as an object."""
        if isinstance(make, nevergrad.optimizers.base.Optimizer):
            self._budget, self._array = make.budget, make.parametrization
            space = space if space is not None else self._array
            make = make.name
        super().__init__(space, metric, mode, points_to_evaluate, seed=seed)
        self.optimizer = optimizer
        self.optimizer_kwargs = optimizer_kwargs
        self.seed = seed
        if isinstance(make, str):
            if make not in nevergrad.optimizers.registry:
                raise bad_value("optimizer", "the name of an optimizer in nevergrad.optimizers.registry", make)
            make = nevergrad.optimizers.registry[make]
        if not callable(make):
            raise bad_value("optimizer", "a Nevergrad optimizer class or its name", make)
        self._make_optimizer: Callable[..., Any] = make

    def _set_space(self, space: Any, name: str) -> None:
        is_native = isinstance(space, nevergrad.p.Parameter | list | tuple)
        super()._set_space(_convert_space(space, self._array) if is_native else space, name)

    def _create(self, parameters: tuple[LibraryParameter, ...], seed: int) -> None:
        choose = nevergrad.p
        space = choose.Dict(
            **{
                each.name: choose.Choice(list(range(each.num_options)))
                if each.num_options
                else choose.Scalar(lower=0.0, upper=1.0)
                for each in parameters
            }
        )
        space.random_state.seed(seed % (1 << 32))
        arguments = {"budget": self._budget or self._num_trials or 100, **(self.optimizer_kwargs or {})}
        self._optimizer = self._make_optimizer(parametrization=space, **arguments)
        self._candidates: dict[str, Any] = {}

    def _ask(self, trial_id: str) -> Mapping[str, Any]:
        self._candidates[trial_id] = candidate = self._optimizer.ask()
        return dict(candidate.value)

    def _tell(self, trial_id: str, units: dict[str, Any], loss: float | None, budget: float) -> None:
        candidate = self._candidates.pop(trial_id, None)
        if loss is None:
            return
        if candidate is None or any(abs(candidate.value[name] - value) > 0.5 for name, value in units.items()):
            candidate = self._optimizer.parametrization.spawn_child(new_value=units)
        self._optimizer.tell(candidate, loss)


def _convert_space(space: Any, array: Any) -> Any:
    """Convert Nevergrad's parameters; a list has the names of the numbers in `array`."""
    choose = nevergrad.p
    if not isinstance(space, list | tuple):
        return _convert_parameter(space, "space")
    if not isinstance(array, choose.Array) or array.value.shape != (len(space),):
        expected = "a list of names only with an optimizer whose parameters are an array of as many numbers"
        raise bad_value("space", expected, space)
    return {name: _convert_number(array, name) for name in space}


def _convert_parameter(parameter: Any, name: str) -> Any:
    choose = nevergrad.p
    if isinstance(parameter, choose.Constant):
        return parameter.value
    if isinstance(parameter, choose.Scalar):
        return _convert_number(parameter, name)
    if isinstance(parameter, choose.Choice | choose.TransitionChoice):
        options = parameter.choices._content.values()
        return domains.choice([_convert_parameter(option, name) for option in options])
    if isinstance(parameter, choose.Instrumentation):
        arguments, named = parameter._content.values()
        if not arguments._content:
            return _convert_parameter(named, name)
    elif isinstance(parameter, choose.Tuple):
        return tuple(_convert_parameter(each, name) for each in parameter._content.values())
    elif isinstance(parameter, choose.Dict):
        return {key: _convert_parameter(each, str(key)) for key, each in parameter._content.items()}
    expected = "an ng.p.Dict of ng.p.Scalar, Log, Choice, Tuple and Dict"
    raise bad_value(f"{name!r} of Nevergrad's parameters", expected, parameter)


def _convert_number(parameter: Any, name: str) -> Domain:
    if any(bound is None for bound in parameter.bounds):
        raise bad_value(f"{name!r} of Nevergrad's parameters", "a number with lower and upper bounds", parameter)
    low, high = (float(bound.flat[0]) for bound in parameter.bounds)
    is_log = isinstance(parameter, nevergrad.p.Log)
    if parameter.integer:
        first, end = math.ceil(low), math.floor(high) + 1
        return domains.lograndint(first, end) if is_log else domains.randint(first, end)
    return domains.loguniform(low, high) if is_log else domains.uniform(low, high)
