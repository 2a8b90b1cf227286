"""Runs pipelines in data processes, and keeps the service that this process shares for it."""

from __future__ import annotations

import atexit
import copy
import threading
from collections.abc import Iterator

from paceline.data.context import DataContext
from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.service import Service
from paceline.data.exec.stats import Record, StreamStats
from paceline.data.position import Delivered


class ProcessExecutor:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.record = Record()

    def run(self, pipeline: Pipeline, unit: int = 0, offset: int = 0) -> Iterator[Delivered]:
        name = self.service.give(pipeline, self.record)
        try:
            yield from self.service.lines.rows({"pipeline": name, "unit": unit, "offset": offset})
        finally:
            self.service.take_back(name)

    def stats(self) -> StreamStats:
        return self.service.seen(self.record)


_shared: tuple[Service, DataContext] | None = None
_lock = threading.Lock()  # protects `_shared`


def shared_service() -> Service:
    """The service of this process; started if there is none, or again if the context has changed meanwhile."""
    global _shared
    context = DataContext.get_current()
    with _lock:
        if _shared is None:
            atexit.register(shutdown)
        elif _shared[0].alive and (_shared[1] == context or _shared[0].busy):
            return _shared[0]
        else:
            _shared[0].close()
        service = Service(context)
        _shared = service, copy.deepcopy(context)
        return service


def shutdown() -> None:
    """End the data processes of this process, and let their memory go."""
    global _shared
    with _lock:
        found, _shared = _shared, None
    if found is not None:
        found[0].close()
