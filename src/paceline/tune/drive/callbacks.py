"""Callbacks of a search."""

from __future__ import annotations

from paceline.train.config import RunConfig
from paceline.tune.drive.events import Event
from paceline.tune.drive.state import Search


class Callback:
    pass


class SearchCallbacks:
    def __init__(self, run_config: RunConfig) -> None:
        self._run_config = run_config

    def for_trial(self, run_config: RunConfig) -> RunConfig:
        return run_config

    def saw(self, event: Event, search: Search) -> None: ...
    def tick(self, search: Search, now: float) -> None: ...
