"""A run's directory, and a disk without fsync."""

import pytest

from paceline._storage.run_layout import RunLayout


@pytest.fixture
def layout(tmp_path):
    root = tmp_path / "run"
    root.mkdir()
    return RunLayout(root)


@pytest.fixture
def without_fsync(monkeypatch):
    """A crash of a process loses nothing that was written; only a crash of the machine does."""
    monkeypatch.setattr("os.fsync", lambda fd: None)
