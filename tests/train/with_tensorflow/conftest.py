"""TensorFlow in this process, which sets variables of the environment when it is imported."""

import pytest


@pytest.fixture(scope="session")
def tf():
    return pytest.importorskip("tensorflow")
