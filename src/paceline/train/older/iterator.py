"""The result of `run_iterator`: the ranks' reports, while the function runs."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Self


class TrainingIterator:
    """Yields one list of dicts, by rank, for each report that all ranks have made."""

    def __init__(self, rows: Generator[list[dict[str, Any]], None, list[Any]]) -> None:
        self._rows = rows
        self._results: list[Any] | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[dict[str, Any]]:
        try:
            return next(self._rows)
        except StopIteration as end:
            if self._results is None:
                self._results = end.value
            raise StopIteration from None

    def is_finished(self) -> bool:
        return self._results is not None

    def get_final_results(self, force: bool = False) -> list[Any]:
        """Return what each rank's function returned; with `force`, skip the reports that are left."""
        if force:
            for _ in self:
                pass
        if self._results is None:
            raise RuntimeError("the function is still running: iterate to the end, or get_final_results(force=True)")
        return self._results
