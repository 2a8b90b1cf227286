"""Drivers in this process look for requests more often than others, and wait longer for ranks that answer late."""

import pytest

from paceline._control import clerk, reception, requests


@pytest.fixture(autouse=True)
def set_request_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(requests, "_POLL_S", 0.03)
    monkeypatch.setattr(clerk, "STACKS_WITHIN_S", 60.0)
