"""Search by Ax, Meta's platform for Bayesian optimization: `AxSearch`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from paceline._core.arguments import bad_value, check_choice
from paceline._core.lazy_imports import import_extra
from paceline.tune.search.library_search import LibraryParameter, LibrarySearch
from paceline.tune.space import domains

ax_client = import_extra("ax.api.client", "AxSearch")

__all__ = ["AxSearch"]


class AxSearch(LibrarySearch):
    """Suggests configurations with Ax. `ax_kwargs` are arguments of its `Client`.

    `space` may also be a list of Ax's own parameters: `{"name": "lr", "type": "range", "bounds": [0.0, 1.0]}`.
    Constraints are not supported: Ax sees all numbers from 0 to 1.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        parameter_constraints: Sequence[str] | None = None,
        outcome_constraints: Sequence[str] | None = None,
        ax_client: Any = None,
        *,
        seed: int | None = None,
        **ax_kwargs: Any,
    ) -> None:
        unsupported = {"parameter_constraints": parameter_constraints, "outcome_constraints": outcome_constraints}
        for name, value in {**unsupported, "ax_client": ax_client}.items():
            if value:
                raise ValueError(
                    f"AxSearch does not support {name}\n\nhint: report a bad value of the metric otherwise"
                )
        super().__init__(space, metric, mode, points_to_evaluate, seed=seed)
        self.parameter_constraints, self.outcome_constraints = parameter_constraints, outcome_constraints
        self.ax_client = ax_client
        self.seed = seed
        self.ax_kwargs = ax_kwargs
        self._asked: dict[str, Mapping[str, Any]] = {}

    def _set_space(self, space: Any, name: str) -> None:
        super()._set_space(_convert_space(space) if isinstance(space, list | tuple) else space, name)

    def _create(self, parameters: tuple[LibraryParameter, ...], seed: int) -> None:
        from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

        logging.getLogger("ax").setLevel(logging.WARNING)
        self._client = ax_client.Client(**{"random_seed": seed, **self.ax_kwargs})
        self._client.configure_experiment(
            [
                ChoiceParameterConfig(each.name, list(range(each.num_options)), "int", is_ordered=False)
                if each.num_options > 1
                else RangeParameterConfig(each.name, (0.0, 1.0), "float")
                for each in parameters
            ]
        )
        self._client.configure_optimization("-loss")
        self._indexes: dict[str, int] = {}

    def _ask(self, trial_id: str) -> Mapping[str, Any]:
        ((self._indexes[trial_id], asked),) = self._client.get_next_trials(max_trials=1).items()
        self._asked[trial_id] = asked
        return {each.name: asked[each.name] if each.num_options != 1 else 0 for each in self._parameters}

    def _tell(self, trial_id: str, units: dict[str, Any], loss: float | None, budget: float) -> None:
        index, asked = self._indexes.pop(trial_id, None), self._asked.pop(trial_id, None)
        if index is not None and loss is None:
            self._client.mark_trial_failed(index)
        if loss is None:
            return
        if index is None or asked is None or any(abs(asked[name] - value) >= 0.5 for name, value in units.items()):
            if index is not None:
                self._client.mark_trial_abandoned(index)
            index = self._client.attach_trial(units)
        self._client.complete_trial(index, {"loss": loss})


def _convert_space(parameters: Sequence[Any]) -> dict[str, Any]:
    """Convert a list of Ax's parameters; `a/b` is the name of `b` in the dict `a`."""
    space: dict[str, Any] = {}
    for parameter in parameters:
        if not isinstance(parameter, Mapping) or not isinstance(parameter.get("name"), str):
            expected = "dicts such as {'name': 'lr', 'type': 'range', 'bounds': [0.0, 1.0]}"
            raise bad_value("the parameters in space", expected, parameter)
        *path, last = parameter["name"].split("/")
        inner = space
        for key in path:
            inner = inner.setdefault(key, {})
        inner[last] = _convert_parameter(parameter)
    return space


def _convert_parameter(parameter: Mapping[str, Any]) -> Any:
    kind, name = parameter.get("type", "range" if "bounds" in parameter else "choice"), parameter["name"]
    check_choice(f"the type of {name!r} in space", kind, ("range", "choice", "fixed"))
    if kind == "fixed":
        return parameter["value"]
    if kind == "choice":
        return domains.choice(parameter["values"])
    low, high = parameter["bounds"]
    is_log = bool(parameter.get("log_scale", False))
    both_int = isinstance(low, int) and isinstance(high, int)
    if parameter.get("value_type", "int" if both_int else "float") == "int":
        first, end = int(low), int(high) + 1
        return domains.lograndint(first, end) if is_log else domains.randint(first, end)
    return domains.loguniform(low, high) if is_log else domains.uniform(low, high)
