"""The interface of searchers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from paceline._core.arguments import bad_value

log = logging.getLogger("paceline")

Names = str | list[str] | None
"""A metric or a mode; for several objectives, a list of these."""


class Searcher:
    """Base of searchers: subclass it and implement `suggest`.

    It runs in the driver and suggests one trial at a time. It must take its randomness from its own seed: when a search
    is resumed, its state is rebuilt by `rebuild` and the `on_trial_...` methods, called in the original order. Built-in
    searchers keep each constructor argument as an attribute of the same name, from which the journal describes them.
    """

    FINISHED: ClassVar[str] = "FINISHED"

    needs_metric: bool = True
    """It learns from results, so a metric is required."""
    counts_samples: bool = False
    """It ends by itself after `num_samples` samples, however many trials these are. Otherwise the search ends it."""

    def __init__(self, metric: Names = None, mode: Names = None) -> None:
        self.metric = metric
        self.mode = mode

    def set_search_properties(self, metric: Names, mode: Names, config: Mapping[str, Any], **spec: Any) -> bool:
        """Take the `Tuner`'s metric and space; False: it has its own already. `spec`: `num_samples` and `seed`."""
        return False

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Take the limit of a `ConcurrencyLimiter`; return False if the searcher has no limit of its own."""
        return False

    def suggest(self, trial_id: str) -> Mapping[str, Any] | str | None:
        """Return the configuration of the next trial; None: ask again after a result; FINISHED: no more trials."""
        raise NotImplementedError

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """A trial made a report that contains the metric."""

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """A trial ended, with its last result; `error` if it failed."""

    def on_trial_stopped(self, trial_id: str, result: Mapping[str, Any] | None = None) -> None:
        """A scheduler stopped a trial early. Called instead of `on_trial_complete`, which it calls by default."""
        self.on_trial_complete(trial_id, result)

    def rebuild(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """Restore a trial that was suggested with this configuration under an earlier driver."""
        again = self.suggest(trial_id)
        if again != config:
            text = "%s suggests another configuration for trial %s than before, so what it learned is lost. "
            log.warning(f"{text}Give it a seed, or implement rebuild()", type(self).__name__, trial_id)


def check_points(points: Any) -> list[Mapping[str, Any]]:
    if points is None:
        return []
    if not isinstance(points, Sequence) or isinstance(points, str):
        raise bad_value("points_to_evaluate", "a list of configurations", points)
    for index, point in enumerate(points):
        if not isinstance(point, Mapping):
            raise bad_value(f"points_to_evaluate[{index}]", "a dict of values", point)
    return [dict(point) for point in points]
