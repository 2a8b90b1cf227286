"""Search by ZOOpt's sequential randomized coordinate shrinking: `ZOOptSearch`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline._core.arguments import check_choice, check_int
from paceline._core.lazy_imports import import_extra
from paceline.tune.search.library_search import LibraryParameter, LibrarySearch

zoopt = import_extra("zoopt", "ZOOptSearch")

__all__ = ["ZOOptSearch"]


class ZOOptSearch(LibrarySearch):
    """Suggests configurations with ZOOpt, which needs to know the number of trials: `budget`.

    It starts with a group of random ones and waits for their results; afterwards at most `parallel_num` are without.
    """

    def __init__(
        self,
        algo: str = "asracos",
        budget: int | None = None,
        dim_dict: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        parallel_num: int = 1,
        *,
        seed: int | None = None,
    ) -> None:
        check_choice("algo", str(algo).lower(), ("sracos", "asracos"))
        check_int("budget", budget, at_least=1, optional=True)
        super().__init__(dim_dict, metric, mode, points_to_evaluate, seed=seed)
        self.algo = algo
        self.budget = budget
        self.dim_dict = dim_dict
        self.parallel_num = parallel_num
        self.seed = seed

    def _create(self, parameters: tuple[LibraryParameter, ...], seed: int) -> None:
        from zoopt.algos.opt_algorithms.racos.sracos import SRacosTune

        dimensions = [
            (zoopt.ValueType.GRID, list(range(each.num_options)))
            if each.num_options
            else (zoopt.ValueType.CONTINUOUS, [0.0, 1.0], 1e-10)
            for each in parameters
        ]
        parameter = zoopt.Parameter(budget=self.budget or self._num_trials or 100)
        self._optimizer = SRacosTune(zoopt.Dimension2(dimensions), parameter, parallel_num=self.parallel_num)
        self._solutions: dict[str, Any] = {}

    def _ask(self, trial_id: str) -> Mapping[str, Any] | None:
        solution = self._optimizer.suggest()
        if solution is None and not self._solutions:
            # It waits for the end of its first group, all of which has ended already.
            self._optimizer.semaphore = 1
            solution = self._optimizer.suggest()
        if solution is None or isinstance(solution, str):
            return None
        self._solutions[trial_id] = solution
        return dict(zip((each.name for each in self._parameters), solution.get_x(), strict=True))

    def _tell(self, trial_id: str, units: dict[str, Any], loss: float | None, budget: float) -> None:
        solution = self._solutions.pop(trial_id, None)
        if solution is not None:
            solution.set_x([units[each.name] for each in self._parameters])
            # It waits for the result of each, so a failure is one worse than all others.
            self._optimizer.complete(solution, loss if loss is not None else 1e300)
