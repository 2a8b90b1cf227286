"""The statistics of a run's datasets on a cluster, as the serving actor last reported them; never waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from paceline._engine.ray.connection import import_ray
from paceline.data.exec.stats import StreamStats

_decode = msgspec.msgpack.Decoder(dict[str, StreamStats]).decode


class ServiceStatsPoller:
    """Each call returns the last known statistics and requests new ones."""

    def __init__(self, actor: Any, token: str) -> None:
        self._actor = actor
        self._token = token
        self._pending: Any = None
        """The request that is not answered yet."""
        self._last: dict[str, StreamStats] = {}

    def __call__(self) -> Mapping[str, StreamStats]:
        ray = import_ray()
        try:
            if self._pending is not None and ray.wait([self._pending], timeout=0)[0]:
                answered, self._pending = self._pending, None
                self._last = _decode(ray.get(answered))
            if self._pending is None:
                self._pending = self._actor.all_stats.remote(self._token)
        except ray.exceptions.RayError:
            self._pending = None  # The actor is lost or restarts; the workers get the error.
        return self._last
