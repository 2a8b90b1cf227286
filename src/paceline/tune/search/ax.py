"""Search by Ax, Meta's platform for Bayesian optimization: `AxSearch`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from paceline._core.lazy_imports import import_extra
from paceline.tune.search.library_search import LibraryParameter, LibrarySearch

ax_client = import_extra("ax.api.client", "AxSearch")

__all__ = ["AxSearch"]


class AxSearch(LibrarySearch):
    """Suggests configurations with Ax. `ax_kwargs` are arguments of its `Client`.

    Constraints are not supported: Ax sees all numbers from 0 to 1.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
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
