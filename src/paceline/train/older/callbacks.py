"""The callbacks of one `run()`: told of its beginning, of every report that all ranks have made, and of its end."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from paceline._core.plain import unplain
from paceline._engine.messages import Reported
from paceline.train.older.functions import SAVED

log = logging.getLogger("paceline")

_METHODS = ("start_training", "handle_result", "finish_training")


class Told:
    """Those who are told. One that raises is dropped with its traceback, and training goes on."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = list(callbacks)

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    @contextlib.contextmanager
    def during(self, logdir: Path, config: Mapping[str, Any] | None) -> Iterator[None]:
        self._all("start_training", lambda method: method(logdir=str(logdir), config=dict(config or {})))
        failed = True
        try:
            yield
            failed = False
        finally:
            self._all("finish_training", lambda method: method(error=failed))

    def of(self, row: list[Reported]) -> None:
        if not (row[0].checkpoint or "").startswith(SAVED):
            metrics = [unplain(msgspec.json.decode(each.metrics)) for each in row]
            self._all("handle_result", lambda method: method(metrics))

    def _all(self, name: str, call: Callable[[Any], None]) -> None:
        for callback in list(self._callbacks):
            method = getattr(callback, name, None)
            if method is None:
                continue
            try:
                call(method)
            except Exception:
                self._callbacks.remove(callback)
                log.exception("%s raised and is dropped; training goes on", type(callback).__name__)


def told_of(callbacks: Any) -> Told:
    """The callbacks of a run, checked."""
    given = list(callbacks or ())
    for callback in given:
        if not any(callable(getattr(callback, name, None)) for name in _METHODS):
            raise ValueError(
                f"callbacks holds {callback!r}, which has none of the methods {', '.join(_METHODS)}\n\n"
                "hint: a UserCallback is given to RunConfig(callbacks=[...])"
            )
    return Told(given)
