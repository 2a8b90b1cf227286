"""How the datasets of a run on a cluster go, as the actor that serves them said last: nobody waits for its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from paceline._engine.ray.connect import imported
from paceline.data.exec.stats import StreamStats

_decode = msgspec.msgpack.Decoder(dict[str, StreamStats]).decode


class Watched:
    """Called now and then, it says what it knows and asks again."""

    def __init__(self, actor: Any, token: str) -> None:
        self._actor = actor
        self._token = token
        self._asked: Any = None
        """What is not answered yet."""
        self._last: dict[str, StreamStats] = {}

    def __call__(self) -> Mapping[str, StreamStats]:
        ray = imported()
        try:
            if self._asked is not None and ray.wait([self._asked], timeout=0)[0]:
                answered, self._asked = self._asked, None
                self._last = _decode(ray.get(answered))
            if self._asked is None:
                self._asked = self._actor.all_stats.remote(self._token)
        except ray.exceptions.RayError:
            self._asked = None  # The actor is lost or begins anew, which the workers are told.
        return self._last
