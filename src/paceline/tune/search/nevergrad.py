"""Search by Nevergrad's optimizers: `NevergradSearch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline._core.arguments import bad_value
from paceline._core.lazy_imports import import_extra
from paceline.tune.search.library_search import LibraryParameter, LibrarySearch

nevergrad = import_extra("nevergrad", "NevergradSearch")

__all__ = ["NevergradSearch"]


class NevergradSearch(LibrarySearch):
    """Suggests configurations with a Nevergrad optimizer: a class or its name; `"OnePlusOne"` by default.

    `optimizer_kwargs` are its arguments; its `budget` is the number of trials, or 100 if that is unlimited.
    """

    def __init__(
        self,
        optimizer: str | Callable[..., Any] | None = None,
        optimizer_kwargs: Mapping[str, Any] | None = None,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(space, metric, mode, points_to_evaluate, seed=seed)
        self.optimizer = optimizer
        self.optimizer_kwargs = optimizer_kwargs
        self.seed = seed
        make = optimizer if optimizer is not None else nevergrad.optimizers.OnePlusOne
        if isinstance(make, str):
            if make not in nevergrad.optimizers.registry:
                raise bad_value("optimizer", "the name of an optimizer in nevergrad.optimizers.registry", make)
            make = nevergrad.optimizers.registry[make]
        if not callable(make):
            raise bad_value("optimizer", "a Nevergrad optimizer class or its name", make)
        self._make_optimizer: Callable[..., Any] = make

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
        arguments = {"budget": self._num_trials or 100, **(self.optimizer_kwargs or {})}
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
