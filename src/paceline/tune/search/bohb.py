"""Search by the model of BOHB, for `HyperBandForBOHB`: `TuneBOHB`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from paceline._core.arguments import check_int
from paceline._core.lazy_imports import import_extra
from paceline.tune.search.library_search import LibraryParameter, LibrarySearch

bohb = import_extra("hpbandster.optimizers.config_generators.bohb", "TuneBOHB")
config_space = import_extra("ConfigSpace", "TuneBOHB")

__all__ = ["TuneBOHB"]


class TuneBOHB(LibrarySearch):
    """Suggests configurations with the model of BOHB, which learns from the results at each budget of HyperBand.

    Use it with `HyperBandForBOHB`. The budget of a result is its `training_iteration`. `bohb_config` are arguments of
    hpbandster's config generator; at most `max_concurrent` trials run at a time, 0 for any number.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | None = None,
        bohb_config: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
        max_concurrent: int = 0,
    ) -> None:
        check_int("max_concurrent", max_concurrent, at_least=0)
        super().__init__(space, metric, mode, points_to_evaluate, seed=seed)
        self.bohb_config = bohb_config
        self.seed = seed
        self.max_concurrent = max_concurrent
        self._last_losses: dict[str, tuple[float, float]] = {}
        self._paused: set[str] = set()

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        if (loss := self._get_loss(result)) is not None and trial_id in self._live:
            self._last_losses[trial_id] = (loss, float(result.get("training_iteration", 1)))

    def on_pause(self, trial_id: str) -> None:
        """Learn from its result so far: it waits for the others of its bracket."""
        self._paused.add(trial_id)
        if (last := self._last_losses.pop(trial_id, None)) is not None and trial_id in self._live:
            self._tell_picks(trial_id, self._live[trial_id], *last)

    def on_unpause(self, trial_id: str) -> None:
        self._paused.discard(trial_id)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        self._paused.discard(trial_id)
        super().on_trial_complete(trial_id, result, error)

    def _create(self, parameters: tuple[LibraryParameter, ...], seed: int) -> None:
        space = config_space.ConfigurationSpace(seed=seed % (1 << 32))
        space.add(
            [
                config_space.Categorical(each.name, list(range(each.num_options)))
                if each.num_options
                else config_space.Float(each.name, (0.0, 1.0))
                for each in parameters
            ]
        )
        self._bohb = bohb.BOHB(space, **(self.bohb_config or {}))

    def _ask(self, trial_id: str) -> Mapping[str, Any] | None:
        if self.max_concurrent and len(self._live) - len(self._paused) >= self.max_concurrent:
            return None
        asked, _ = self._bohb.get_config(None)
        return dict(asked)

    def _tell(self, trial_id: str, units: dict[str, Any], loss: float | None, budget: float) -> None:
        job = SimpleNamespace(
            result={"loss": loss} if loss is not None else None,
            kwargs={"budget": budget, "config": units},
            exception=None,
        )
        self._bohb.new_result(job)
