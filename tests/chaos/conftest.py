"""Runs of one's own: temporary files are looked for in a directory that only this test uses.

`@pytest.mark.seeds(60, few=2)` runs a test with 60 seeds in `make chaos`, times `--chaos-scale`, and with 2 others in
`make test`. The seed is in the name of the test.
"""

import tempfile

import cloudpickle
import oracle
import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "seeds(many, few=1): how many in `make chaos`, and in `make test`")


def pytest_generate_tests(metafunc):
    mark = metafunc.definition.get_closest_marker("seeds")
    if mark is not None:
        few = mark.kwargs.get("few", 1)
        many = max(1, round(mark.args[0] * metafunc.config.getoption("--chaos-scale")))
        seeds = [pytest.param(seed, marks=pytest.mark.chaos) for seed in range(100, 100 + many)]
        metafunc.parametrize("seed", [*range(few), *seeds])


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
            known[key] = oracle.expected(result, steps)
        return known[key]

    return get
