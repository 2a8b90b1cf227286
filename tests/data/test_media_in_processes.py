"""Media and datasets of others, read by data processes: the rows, and their order, are those that are read here."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image
from read_back import block, pipeline
from torch.utils.data import Dataset, TensorDataset

from paceline.data.block import Block
from paceline.data.context import DataContext
from paceline.data.exec.processes import ProcessExecutor
from paceline.data.exec.service import Service
from paceline.data.from_others import as_dataset
from paceline.data.read_media import read_images


@pytest.fixture
def executor(data_context: DataContext) -> Iterator[ProcessExecutor]:
    service = Service(data_context)
    yield ProcessExecutor(service)
    service.close()


def elsewhere(dataset: Any, executor: ProcessExecutor) -> Block:
    return Block.concat(delivered.block for delivered in executor.run(pipeline(dataset)))


class Ragged(Dataset[Any]):
    def __len__(self) -> int:
        return 70

    def __getitem__(self, index: int) -> Any:
        if index >= 70:
            raise IndexError(index)
        return {"x": torch.full((index % 3 + 1,), index), "text": f"item {index}"}


def test_what_other_processes_read_is_what_is_read_here(tmp_path: Path, executor: ProcessExecutor) -> None:
    for number in range(20):
        pixels = np.random.default_rng(number).integers(0, 256, (4 + number % 2, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number:02}.png")
    datasets = {
        "images": read_images(tmp_path, include_paths=True, override_num_blocks=5),
        "small torch dataset": as_dataset(Ragged()),
        "large torch dataset": as_dataset(TensorDataset(torch.arange(20_000).reshape(-1, 50))),
        "lazy frame": as_dataset(pl.LazyFrame({"a": [*range(100)], "b": ["x"] * 100})),
    }
    for name, dataset in datasets.items():
        here, there = block(dataset), elsewhere(dataset, executor)
        assert list(here.columns) == list(there.columns), name
        for one, other in zip(here.rows(), there.rows(), strict=True):
            for column, value in one.items():
                np.testing.assert_array_equal(value, other[column], name)


def test_a_broken_file_is_named_from_there_too(tmp_path: Path, executor: ProcessExecutor) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(Exception, match=r"broken\.png cannot be read as an image: it is of no format"):
        elsewhere(read_images(tmp_path), executor)
