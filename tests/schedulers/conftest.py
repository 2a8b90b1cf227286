"""A real scheduler: Slurm on two hosts for all tests here."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "hosts")]

from slurm import Slurm, missing_for_slurm  # noqa: E402


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.chaos)
            item.add_marker(pytest.mark.ray)
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    pytest.importorskip("ray")
    if missing := missing_for_slurm():
        pytest.skip(f"no jobs can be submitted here without {missing}: Slurm was not tried")
    slurm = Slurm(tmp_path_factory.mktemp("slurm"))
    yield slurm
    slurm.close()
