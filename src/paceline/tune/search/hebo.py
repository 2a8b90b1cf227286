"""Search by HEBO, Huawei's heteroscedastic evolutionary Bayesian optimization: `HEBOSearch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline._core.lazy_imports import import_extra
from paceline.tune.search.library_search import LibraryParameter, LibrarySearch

hebo = import_extra("hebo", "HEBOSearch")

__all__ = ["HEBOSearch"]


class HEBOSearch(LibrarySearch):
    """Suggests configurations with HEBO; at most `max_concurrent` trials are without a result. `kwargs` are HEBO's."""

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        evaluated_rewards: Sequence[float] | None = None,
        random_state_seed: int | None = None,
        max_concurrent: int = 8,
        **kwargs: Any,
    ) -> None:
        super().__init__(space, metric, mode, points_to_evaluate, evaluated_rewards, random_state_seed)
        self.random_state_seed = random_state_seed
        self.max_concurrent = max_concurrent
        self.kwargs = kwargs

    def _create(self, parameters: tuple[LibraryParameter, ...], seed: int) -> None:
        from hebo.design_space.design_space import DesignSpace
        from hebo.optimizers.hebo import HEBO

        described = [
            {"name": each.name, "type": "cat", "categories": list(range(each.num_options))}
            if each.num_options
            else {"name": each.name, "type": "num", "lb": 0.0, "ub": 1.0}
            for each in parameters
        ]
        self._optimizer = HEBO(DesignSpace().parse(described), **{"scramble_seed": seed, **self.kwargs})

    def _ask(self, trial_id: str) -> Mapping[str, Any] | None:
        if len(self._live) >= self.max_concurrent:
            return None
        return self._optimizer.suggest(n_suggestions=1).iloc[0].to_dict()  # type: ignore[no-any-return]

    def _tell(self, trial_id: str, units: dict[str, Any], loss: float | None, budget: float) -> None:
        if loss is not None:
            import numpy as np
            import pandas as pd

            self._optimizer.observe(pd.DataFrame([units]), np.array([[loss]]))
