"""Runs of one's own: temporary files are looked for in a directory that only this test uses."""

import dataclasses
import tempfile

import cloudpickle
import oracle
import pytest


@dataclasses.dataclass(frozen=True)
class Expected:
    reports: dict
    weights: list


@pytest.fixture(autouse=True, scope="session")
def _functions_travel_by_value():
    """Workers cannot import the modules of a test."""
    cloudpickle.register_pickle_by_value(oracle)
    yield
    cloudpickle.unregister_pickle_by_value(oracle)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    path = tmp_path / "tmp"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return path


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """What a function comes to when nothing happens, computed once for each."""
    known = {}

    def get(kind, function, steps=oracle.STEPS):
        key = (kind, function, steps)
        if key not in known:
            result = oracle.trainer_of(kind, function, tmp_path_factory.mktemp("undisturbed"), steps).fit()
            reports = {rank: oracle.reports(result.path, rank) for rank in (0, 1)}
            assert [seq for seq, _ in reports[0]] == list(range(1, steps + 1))
            known[key] = Expected(reports, result.return_value)
        return known[key]

    return get
