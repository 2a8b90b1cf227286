"""Drivers in this process look for requests more often than others, and wait longer for ranks that answer late."""

import pytest

from paceline._control import request_handler, request_inbox, requests


@pytest.fixture(autouse=True)
def set_request_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_inbox, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(requests, "_POLL_S", 0.03)
    monkeypatch.setattr(request_handler, "STACKS_TIMEOUT_S", 60.0)
    monkeypatch.setattr(request_handler, "DATA_TIMEOUT_S", 60.0)
