"""`fit_in` of fits.py, and the same below `tmp_path`."""

import functools

import fits
import pytest

from paceline.data.exec.service import shutdown


@pytest.fixture(scope="session")
def fit_in():
    return fits.fit_in


@pytest.fixture
def fit(tmp_path):
    return functools.partial(fits.fit_in, tmp_path)


@pytest.fixture
def data_processes():
    """Processes of datasets end with the test."""
    yield
    shutdown()
