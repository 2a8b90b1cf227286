"""The interface of stoppers, and how they look up metrics."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from typing import Any

from paceline._core.plain_values import get_metric

log = logging.getLogger("paceline")


class Stopper:
    """Ends trials, or the whole search. Apart from a clock, the same calls in the same order give the same answers."""

    decides: bool = True
    """If True, trials wait in each report for its answer. False: it never ends a single trial."""
    _why: str = ""

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        """Whether this trial should end with this result. Called once per report."""
        raise NotImplementedError

    def stop_all(self) -> bool:
        """Whether the search should end. Called after every result and periodically."""
        return False

    def continued(self, ran_s: float) -> None:
        """A driver starts; earlier ones ran the search for `ran_s` seconds, 0 for a new search."""

    @property
    def why(self) -> str:
        """Why it last stopped a trial or the search."""
        return self._why or type(self).__name__


class MetricLookup:
    """Looks up numbers by name or path, and logs once per name if the first reports lack it."""

    def __init__(self, asker: str) -> None:
        self._asker = asker
        self._known_names: set[str] = set()

    def get_number(self, name: str, trial_id: str, result: Mapping[str, Any]) -> float | None:
        metrics = result if isinstance(result, dict) else dict(result)
        value = get_metric(metrics, name)
        is_number = isinstance(value, (int, float))
        if name not in self._known_names:
            self._known_names.add(name)
            if not is_number:
                self._warn(name, trial_id, value, metrics)
        return value if is_number else None

    def _warn(self, name: str, trial_id: str, value: Any, metrics: Mapping[str, Any]) -> None:
        similar = difflib.get_close_matches(name, map(str, metrics), n=1)
        other = f" but {value!r}" if value is not None else ""
        if similar and similar[0] != name:
            other += f" (did you mean {similar[0]!r}?)"
        text = "%s: the first report, of trial %s, has no number %r%s. Reports without it stop nothing; this one has %s"
        log.warning(text, self._asker, trial_id, name, other, ", ".join(map(str, metrics)))
