"""from_items, from_pandas, from_numpy, from_arrow, range and range_tensor."""

import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_datasets import blocks_of, rows_of, source_of

from paceline import data
from paceline.data.block import TensorType
from paceline.data.sources.memory import unit_ranges


@given(st.integers(0, 500), st.integers(0, 1 << 30), st.none() | st.integers(1, 600), st.integers(1, 64))
def test_cuts_leave_out_nothing(num_rows, num_bytes, number, least):
    found = unit_ranges(num_rows, num_bytes, number, least)
    assert [row for start, stop in found for row in range(start, stop)] == list(range(num_rows))
    if number is not None:
        assert len(found) == min(number, num_rows)
    sizes = [stop - start for start, stop in found]
    assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "rows",
    [
        [{"a": 1, "b": "x"}, {"a": 2, "b": None}],
        [{"a": number} for number in range(1000)],
        [{"a": [1, 2]}, {"a": []}],
        [{"a": {"k": 1}}],
        *([1, 2, 3], ["a", "b"], [1.5, 2.5], [None, "x"], [b"x"], []),
    ],
)
def test_dicts_are_rows_and_other_items_the_column_item(rows):
    assert rows_of(data.from_items(rows)) == [row if isinstance(row, dict) else {"item": row} for row in rows]


def test_arrays_in_items_are_tensors_and_a_key_that_an_item_lacks_is_null_in_whichever_block():
    dataset = data.from_items([{"t": np.full((2, 2), number)} for number in range(3)])
    assert source_of(dataset).schema().types == [TensorType(np.dtype(np.int64), (2, 2))]
    assert [row["t"].tolist() for row in rows_of(dataset)] == [[[number] * 2] * 2 for number in range(3)]
    dataset = data.from_items([{"a": number} for number in range(200)] + [{"b": "x"}])
    assert all(list(block.columns) == ["a", "b"] for block in blocks_of(dataset))
    assert rows_of(dataset)[-1] == {"a": None, "b": "x"}


def test_there_are_many_units_for_many_items_and_as_many_as_requested():
    assert len(source_of(data.from_items(list(range(1000)))).units()) == 64
    assert len(source_of(data.from_items([1, 2])).units()) == 2
    assert len(source_of(data.from_items(list(range(10)), override_num_blocks=3)).units()) == 3


def test_frames_are_their_rows_one_after_the_other():
    texts = [None if row % 3 else str(row) for row in range(100)]
    frame = pd.DataFrame({"n": range(100), "s": texts})
    for dataset in (data.from_pandas(frame), data.from_pandas([frame[:7], frame[7:14], frame[14:]])):
        found = pd.concat([block.to_pandas() for block in blocks_of(dataset)], ignore_index=True)
        assert found["n"].tolist() == [*range(100)]
        assert [None if pd.isna(value) else value for value in found["s"]] == texts
        names = [unit.name for unit in source_of(dataset).units()]
        assert len(set(names)) == len(names)
        assert names[-1].startswith("from_pandas (rows ")


@pytest.mark.parametrize("shape", [(10,), (10, 2, 2)])
def test_an_array_or_a_list_of_arrays_is_a_column(shape):
    array = np.arange(np.prod(shape)).reshape(shape)
    for arrays in (array, [array[:3], array[3:]]):
        blocks = blocks_of(data.from_numpy(arrays))
        np.testing.assert_array_equal(np.concatenate([block.columns["data"] for block in blocks]), array)


def test_tables_are_their_rows_and_a_unit_carries_no_more_than_its_own():
    table = pa.table({"n": range(100_000), "s": [f"{row:020}" for row in range(100_000)]})
    dataset = data.from_arrow(table)
    units = source_of(dataset).units()
    assert len(units) == 16
    assert len(pickle.dumps(units[0])) < table.nbytes / 10
    assert pa.concat_tables(block.to_arrow() for block in blocks_of(dataset)).to_pydict() == table.to_pydict()
    values = np.arange(8.0).reshape(2, 2, 2)
    tensors = pa.table({"t": pa.FixedShapeTensorArray.from_numpy_ndarray(values)})
    several = data.from_arrow([tensors, tensors.to_batches()[0]])
    assert [row["t"].tolist() for row in rows_of(several)] == [*values.tolist(), *values.tolist()]
    empty = source_of(data.from_arrow(table[:0]))
    assert (list(empty.units()), empty.schema().names) == ([], ["n", "s"])


def test_projection_is_selection():
    source = source_of(data.from_arrow(pa.table({"a": [1, 2], "b": [3, 4], "c": ["x", "y"]})))
    projected = source.project_columns(["c", "a"])
    assert projected is not None
    found = [row for unit in projected.units() for block in unit.read() for row in block.rows()]
    assert found == [{"c": "x", "a": 1}, {"c": "y", "a": 2}]
    assert source.project_columns(["a", "b", "c"]) is None
    assert source.project_columns(["nowhere"]) is None


def test_tensors_of_a_range_are_filled_with_the_number_and_long_units_come_in_pieces():
    dataset = data.range_tensor(3, shape=(2, 2))
    assert [row["data"].tolist() for row in rows_of(dataset)] == [[[n, n], [n, n]] for n in range(3)]
    assert source_of(dataset).schema().types == [TensorType(np.dtype(np.int64), (2, 2))]
    assert rows_of(data.range_tensor(2))[1]["data"].tolist() == [1]
    (unit,) = source_of(data.range(3_000_000, override_num_blocks=1)).units()
    blocks = list(unit.read())
    assert [block.num_rows for block in blocks] == [1 << 20, 1 << 20, 3_000_000 - (2 << 20)]
    assert blocks[2].columns["id"][-1] == 2_999_999
