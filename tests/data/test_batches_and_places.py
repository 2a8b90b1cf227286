"""Sizes of batches of rows in memory, the working directory of data processes, and what a `BlockAccessor` gives."""

import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import paceline.data
from paceline.data.block import BlockAccessor


def take_sizes(dataset, batch_size):
    counted = dataset.map_batches(lambda batch: {"n": [len(next(iter(batch.values())))]}, batch_size=batch_size)
    return [row["n"] for row in counted.take_all()]


@pytest.mark.parametrize(
    "make",
    [
        paceline.data.range,
        lambda n, **options: paceline.data.from_numpy(np.arange(n), **options),
        lambda n, **options: paceline.data.from_items([{"x": i} for i in range(n)], **options),
    ],
)
def test_rows_in_memory_come_in_whole_batches(make):
    for num_rows, batch_size in ((10, 2), (1000, 256), (1000, 7), (3, 8), (100, 1)):
        rest = [num_rows % batch_size] if num_rows % batch_size else []
        assert take_sizes(make(num_rows), batch_size) == [batch_size] * (num_rows // batch_size) + rest
    assert take_sizes(make(10).map(lambda row: row), 5) == [5, 5]
    assert take_sizes(make(10, override_num_blocks=5), 4) == [2] * 5, "the user's units stay"
    assert len(make(100).map_batches(lambda batch: batch, batch_size=10).materialize()._plan.source.units()) > 1


def test_functions_run_in_the_working_directory_of_now(tmp_path, monkeypatch):
    monkeypatch.setattr(paceline.data.DataContext.get_current(), "inline_below", 0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        rows = paceline.data.range(2).map(lambda row: {"place": os.path.basename(os.getcwd()), "pid": os.getpid()})
        assert {row["place"] for row in rows.take_all()} == {name}
        assert os.getpid() not in {row["pid"] for row in rows.take_all()}


def test_a_block_accessor_converts_and_reduces_the_rows_of_a_block():
    table = pa.table({"x": [3.0, None, 1.0], "y": ["a", "b", "c"]})
    for block in (table, table.to_pandas()):
        rows = BlockAccessor.for_block(block)
        assert (rows.num_rows(), rows.count("x"), rows.count("x", ignore_nulls=True)) == (3, 3, 2)
        found = [getattr(rows, name)("x", True) for name in ("sum", "min", "max", "mean")]
        assert found == [4.0, 1.0, 3.0, 2.0]
        assert [getattr(rows, name)("x", False) for name in ("sum", "min", "max", "mean")] == [None] * 4
        assert rows.to_arrow()["y"].to_pylist() == [row["y"] for row in rows.iter_rows()] == ["a", "b", "c"]
        assert rows.to_numpy("y").tolist() == [*rows.to_numpy(["y"])["y"]] == ["a", "b", "c"]
        assert isinstance(rows.to_batch_format("pandas"), pd.DataFrame)
        assert [part["y"].to_pylist() for part in (rows.slice(1, 3), rows.take([2, 1]))] == [["b", "c"], ["c", "b"]]
        assert rows.select(["y"]).column_names == ["y"] == rows.schema().names[1:]
        assert rows.size_bytes() > 0
    assert BlockAccessor.batch_to_block({"x": np.arange(2)}).to_pydict() == {"x": [0, 1]}
