"""Search by Hyperopt's tree of Parzen estimators: `HyperOptSearch`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from paceline._core.lazy_imports import import_extra
from paceline.tune.search.library_search import LibraryParameter, LibrarySearch
from paceline.tune.space.domains import KeyedRandom

hyperopt = import_extra("hyperopt", "HyperOptSearch")

__all__ = ["HyperOptSearch"]


class HyperOptSearch(LibrarySearch):
    """Suggests configurations with Hyperopt: at random `n_initial_points` times, then by TPE with `gamma`."""

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

    def _create(self, parameters: tuple[LibraryParameter, ...], seed: int) -> None:
        hp = hyperopt.hp
        space = {
            each.name: hp.choice(each.name, list(range(each.num_options)))
            if each.num_options
            else hp.uniform(each.name, 0, 1)
            for each in parameters
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
