"""Looks up numbers in reports for stoppers."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from typing import Any

from paceline._core.plain_values import get_metric

log = logging.getLogger("paceline")


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
        near = difflib.get_close_matches(name, map(str, metrics), n=1)
        log.warning(
            "%s: the first report, of trial %s, has no number %r%s%s. Reports without it stop nothing. It has %s",
            self._asker,
            trial_id,
            name,
            f" but {value!r}" if value is not None else "",
            f" (did you mean {near[0]!r}?)" if near and near[0] != name else "",
            ", ".join(map(str, metrics)),
        )
