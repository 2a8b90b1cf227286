"""Runs pipelines in data processes, through the data service that this process shares."""

from __future__ import annotations

import atexit
import copy
import threading
from collections.abc import Iterator

from paceline.data.context import DataContext
from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.service import DataService
from paceline.data.exec.stats import StatsRecorder, StreamStats
from paceline.data.order.sharding import RowDelivery


class ProcessExecutor:
    def __init__(self, service: DataService) -> None:
        self.service = service
        self.record = StatsRecorder()

    def run(self, pipeline: Pipeline, unit: int = 0, offset: int = 0) -> Iterator[RowDelivery]:
        name = self.service.register_pipeline(pipeline, self.record)
        try:
            yield from self.service.connections.stream_rows({"pipeline": name, "unit": unit, "offset": offset})
        finally:
            self.service.unregister_pipeline(name)

    def stats(self) -> StreamStats:
        return self.service.stream_stats(self.record)


_shared: tuple[DataService, DataContext] | None = None
_lock = threading.Lock()  # protects `_shared`


def shared_service() -> DataService:
    """The service of this process: started if there is none, restarted if the context has changed."""
    global _shared
    context = DataContext.get_current()
    with _lock:
        if _shared is None:
            atexit.register(shutdown)
        elif _shared[0].is_alive and (_shared[1] == context or _shared[0].is_busy):
            return _shared[0]
        else:
            _shared[0].close()
        service = DataService(context)
        _shared = service, copy.deepcopy(context)
        return service


def shutdown() -> None:
    """Stop the data processes of this process, and free their memory."""
    global _shared
    with _lock:
        shared, _shared = _shared, None
    if shared is not None:
        shared[0].close()
