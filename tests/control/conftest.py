"""Drivers in this process look for requests more often than others do, so that tests do not wait for them."""

import pytest

from paceline._control import reception, requests


@pytest.fixture(autouse=True)
def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(requests, "_POLL_S", 0.03)
