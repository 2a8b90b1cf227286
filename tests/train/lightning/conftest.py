"""Workers that find Lightning's slow imports done, for these tests alone."""

import pytest

from paceline._engine.local.launch import close_shared_zygote, prewarm


@pytest.fixture(scope="module", autouse=True)
def imported_ahead():
    prewarm("torch._dynamo", "torchmetrics")
    yield
    # Other tests are to fork from a process as small as they would have it.
    close_shared_zygote()
