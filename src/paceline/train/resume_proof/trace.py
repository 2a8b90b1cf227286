"""What a worker of a shadow run notes down, from a certain report on: a line for each thing that decides what follows.

Notes are fingerprints, not values. They lie in one file for each rank, in the temporary directory of the proof.
"""

from __future__ import annotations

import functools
import json
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline._worker import context as worker_context

MAX_NOTES = 400
"""Of each rank: a proof that replays a day need not note it all."""


class Traced:
    """A train function that is watched from report `first` on."""

    def __init__(self, function: Callable[..., Any], first: int, directory: Path) -> None:
        self._function = function
        self._first = first
        self._directory = directory
        self._uses_torch = "torch" in sys.modules or "torch" in _names(function)

    def __call__(self, *config: Any) -> Any:
        context = worker_context.current()
        assert context is not None
        notes = _Notes(context, self._first, self._directory)
        # What only this worker does for only this proof: a report is the one thing that every script has in common.
        setattr(context, "report", functools.partial(_noted, notes, context.report))  # noqa: B010
        if not self._uses_torch:
            return self._function(*config)
        from paceline.train.torch import trace

        with trace.watched(notes.add, notes.wanted):
            return self._function(*config)


class _Notes:
    def __init__(self, context: worker_context.Context, first: int, directory: Path) -> None:
        self._context = context
        self._first = first
        self._path = directory / f"rank_{context.begin.rank}.jsonl"
        self._left = MAX_NOTES

    def wanted(self) -> bool:
        return self._context.num_reports >= self._first and self._left > 0

    def add(self, note: dict[str, Any]) -> None:
        if not self.wanted():
            return
        self._left -= 1
        line = {"seq": self._context.num_reports, "rng": rng_states(), **note}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _noted(notes: _Notes, report: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    notes.add({"kind": "report"})
    report(*args, **kwargs)


def rng_states() -> dict[str, str]:
    """Fingerprints of the generators that scripts draw from without naming one."""
    states = {"python's random": _fingerprint(random.getstate())}
    if (numpy := sys.modules.get("numpy")) is not None and "numpy.random" in sys.modules:
        _, keys, *rest = numpy.random.get_state()
        states["numpy"] = _fingerprint((keys.tobytes(), rest))
    if "torch" in sys.modules:
        from paceline.train.torch import trace

        states |= trace.rng_states()
    return states


def read(directory: Path, rank: int) -> list[dict[str, Any]]:
    path = directory / f"rank_{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _fingerprint(value: Any) -> str:
    import xxhash

    digest: str = xxhash.xxh3_64(repr(value).encode()).hexdigest()
    return digest


def _names(function: Any) -> set[str]:
    """All names that the code of a function mentions, an import inside of it included."""
    code = getattr(function, "__code__", None)
    names: set[str] = set()
    queue = [code] if code is not None else []
    while queue:
        one = queue.pop()
        names |= {name.partition(".")[0] for name in one.co_names}
        queue += [constant for constant in one.co_consts if isinstance(constant, types.CodeType)]
    return names
