"""Plans on Ray Data: the same rows in the same order as in one process, whatever the plan."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from paceline.data.context import DataContext
from paceline.data.dataset import Dataset
from paceline.data.exec.inline import InlineExecutor
from paceline.data.exec.lower import lowered_for
from paceline.data.exec.pipeline import Executor
from paceline.data.exec.ray import RayExecutor


@pytest.fixture(autouse=True)
def context() -> Iterator[DataContext]:
    before, DataContext._current = DataContext._current, DataContext()
    yield DataContext._current
    DataContext._current = before


class Shift:
    """Counts the objects that are made of it, and what each was called with."""

    def __init__(self, by: int = 1) -> None:
        self.by = by

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        size = np.full(len(batch["id"]), len(batch["id"]))
        return {**batch, "id": batch["id"] + self.by, "size": size, "pid": np.full(len(size), os.getpid())}


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"] * 2, "of": np.full(len(batch["id"]), len(batch["id"]))}


def rows(executor: Executor, dataset: Dataset, epoch: int = 0, *start: int) -> list[tuple[Any, ...]]:
    found = []
    pipeline = lowered_for(dataset._plan, epoch, executor)
    for delivered in executor.run(pipeline, *start):
        for index, row in enumerate(delivered.block.rows()):
            row.pop("pid", None)
            plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()}
            found.append((delivered.unit, delivered.offset + index, plain))
    return found


def same(dataset: Dataset, epoch: int = 0, *start: int) -> list[tuple[Any, ...]]:
    expected = rows(InlineExecutor(), dataset, epoch, *start)
    assert rows(RayExecutor(), dataset, epoch, *start) == expected
    return expected
