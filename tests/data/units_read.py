"""What the tests of readers share: the rows of a dataset as its units give them, each sent through pickle first."""

import pickle
from typing import Any

from paceline.data.block import Block
from paceline.data.dataset import Dataset
from paceline.data.planning.plan import Read, Source


def source_of(dataset: Dataset) -> Source:
    assert isinstance(dataset._plan, Read)
    return dataset._plan.source


def blocks_of(dataset: Dataset) -> list[Block]:
    units = [pickle.loads(pickle.dumps(unit)) for unit in source_of(dataset).units()]
    return [block for unit in units for block in unit.read()]


def rows_of(dataset: Dataset) -> list[dict[str, Any]]:
    return [row for block in blocks_of(dataset) for row in block.rows()]


def column(dataset: Dataset, name: str) -> list[Any]:
    return [row[name] for row in rows_of(dataset)]
