"""The notes of a shadow run's worker, from a given report on: one line for each thing that determines the rest.

Notes are fingerprints, not values. Each rank has one file, in the temporary directory of the proof.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline._worker import context as worker_context
from paceline.train.driver.job import iter_global_names

MAX_NOTES = 400
"""Limit per rank: a proof that replays a whole day need not record all of it."""


class TracedFunction:
    """A train function that is traced from report `first` on."""

    def __init__(self, function: Callable[..., Any], first: int, directory: Path) -> None:
        self._function = function
        self._first = first
        self._directory = directory
        self._uses_torch = "torch" in sys.modules or "torch" in _mentioned_names(function)

    def __call__(self, *config: Any) -> Any:
        context = worker_context.current()
        assert context is not None
        notes = _NoteWriter(context, self._first, self._directory)
        report = context.report

        def note_and_report(*args: Any, **kwargs: Any) -> None:
            notes.add({"kind": "report"})
            report(*args, **kwargs)

        # Patch only this worker's context, only for the proof: `report` is the one call that all scripts share.
        setattr(context, "report", note_and_report)  # noqa: B010
        if not self._uses_torch:
            return self._function(*config)
        from paceline.train.torch import trace

        with trace.trace_training(notes.add, notes.is_recording):
            return self._function(*config)


class _NoteWriter:
    def __init__(self, context: worker_context.WorkerContext, first: int, directory: Path) -> None:
        self._context = context
        self._first = first
        self._path = directory / f"rank_{context.begin.rank}.jsonl"
        self._num_left = MAX_NOTES

    def is_recording(self) -> bool:
        return self._context.num_reports >= self._first and self._num_left > 0

    def add(self, note: dict[str, Any]) -> None:
        if not self.is_recording():
            return
        self._num_left -= 1
        line = {"seq": self._context.num_reports, "rng": rng_states(), **note}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def rng_states() -> dict[str, str]:
    """Fingerprints of the global random generators."""
    states = {"python's random": _fingerprint(random.getstate())}
    if (numpy := sys.modules.get("numpy")) is not None and "numpy.random" in sys.modules:
        _, keys, *rest = numpy.random.get_state()
        states["numpy"] = _fingerprint((keys.tobytes(), rest))
    if "torch" in sys.modules:
        from paceline.train.torch import trace

        states |= trace.hash_rng_states()
    return states


def read_notes(directory: Path, rank: int) -> list[dict[str, Any]]:
    path = directory / f"rank_{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _fingerprint(value: Any) -> str:
    import xxhash

    digest: str = xxhash.xxh3_64(repr(value).encode()).hexdigest()
    return digest


def _mentioned_names(function: Any) -> set[str]:
    """All names in a function's code, including imports inside it."""
    code = getattr(function, "__code__", None)
    return {name.partition(".")[0] for name in iter_global_names(code)} if code is not None else set()
