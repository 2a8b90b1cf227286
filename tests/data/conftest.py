"""Every test of this folder has a data context of its own, which spills to its own directory, and data processes of its
own, if any: those of another context are never shared."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.data.context import DataContext
from paceline.data.exec import service


@pytest.fixture(autouse=True)
def data_context(tmp_path: Path) -> Iterator[DataContext]:
    before, DataContext._current = DataContext._current, DataContext(spill_path=str(tmp_path / "spill"))
    yield DataContext._current
    DataContext._current = before
    service.shutdown()
