"""Blocks in shared memory come back as they were, as views, and it is known when the last view is gone."""

import gc
import mmap
import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.block import Block
from paceline.data.exec import arena

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128", ">i4", ">f8", "datetime64[ns]", "datetime64[D]", "timedelta64[s]",
]  # fmt: skip

ARROW = [
    pa.array(["a", None, "long " * 50]),
    pa.array([b"\0", b"", None]),
    pa.array([1, None, 3]),
    pa.array([[1, 2], None, []]),
    pa.array([{"x": 1, "y": "b"}, None, {"x": 2, "y": None}]),
    pa.array(["a", "b", "a"]).dictionary_encode(),
    pa.array([None, None, None]),
    pa.array([True, None, False]),
    pa.array([1, 2, 3], type=pa.timestamp("us", tz="UTC")),
    pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], type=pa.list_(pa.float32(), 2)),
    pa.array([1, 2, 3], type=pa.decimal128(10, 2)),
    pa.array(["x", "y", "z"], type=pa.large_string()),
]


def round_trip(block, *, writable=True, released=lambda: None):
    written = arena.Written(block)
    fd, size = arena.made(written.nbytes)
    assert size >= written.nbytes
    theirs = arena.mapped(os.dup(fd))
    written.into(theirs)
    return arena.read(written.layout, arena.mapped(fd), released, writable=writable)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3,), (0,), (3, 4), (3, 2, 2), (3, 0), (0, 5)], ids=str)
def test_arrays_of_every_dtype_and_shape_come_back(dtype, shape):
    values = np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)
    read = round_trip(Block({"x": values, "y": np.arange(shape[0])})).column("x")
    assert read.dtype == values.dtype
    assert read.shape == shape
    assert np.array_equal(read, values)


@pytest.mark.parametrize("values", ARROW, ids=lambda values: str(values.type))
def test_arrow_columns_of_every_kind_come_back(values):
    read = round_trip(Block({"x": values, "n": np.arange(3)}))
    assert read.column("x").type == values.type
    assert read.column("x").to_pylist() == values.to_pylist()
    assert list(read.columns) == ["x", "n"]


def test_a_slice_of_arrow_columns_takes_the_room_of_the_slice():
    whole = Block({"x": pa.array([f"row {number}" for number in range(10_000)])})
    assert arena.Written(whole.slice(5, 8)).nbytes < 2000
    assert round_trip(whole.slice(5, 8)).column("x").to_pylist() == ["row 5", "row 6", "row 7"]


def test_objects_that_only_pickle_can_carry_come_back():
    ragged = np.empty(2, dtype=object)
    ragged[:] = [np.arange(3), np.arange(5)]
    structured = np.array([(1, 2.0), (3, 4.0)], dtype=[("a", "i4"), ("b", "f8")])
    read = round_trip(Block({"ragged": ragged, "structured": structured, "n": np.arange(2)}))
    assert [len(row) for row in read.column("ragged")] == [3, 5]
    assert np.array_equal(read.column("structured"), structured)


def test_arrays_in_any_order_of_memory_come_back():
    base = np.arange(24).reshape(4, 6)
    for values in (base.T, base[:, ::2], base[::-1], np.asfortranarray(base)):
        assert np.array_equal(round_trip(Block({"x": values})).column("x"), values)


def test_rows_without_columns_are_still_counted():
    assert round_trip(Block({}, num_rows=7)).num_rows == 7


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=5), st.sampled_from(["i4", "f8", "u1", "text", "objects"]), max_size=6
    ),
    st.integers(0, 20),
)
def test_mixed_blocks_come_back_with_their_columns_in_order(kinds, rows):
    def column(kind):
        if kind == "text":
            return pa.array([f"ä{row}" for row in range(rows)], type=pa.string())
        if kind == "objects":
            values = np.empty(rows, dtype=object)
            values[:] = [{row} for row in range(rows)]
            return values
        return np.arange(rows).astype(kind)

    block = Block({name: column(kind) for name, kind in kinds.items()}, num_rows=rows)
    read = round_trip(block)
    assert list(read.columns) == list(block.columns)
    assert list(read.rows()) == list(block.rows())


def test_the_release_is_told_when_the_last_view_is_gone_and_not_before():
    told = []
    block = round_trip(
        Block({"x": np.arange(100), "s": pa.array(["a"] * 100)}), released=lambda: told.append("released")
    )
    view, text = block.column("x")[10:20][::2], block.column("s").slice(3, 4)
    del block
    gc.collect()
    assert told == []
    assert view.tolist() == [10, 12, 14, 16, 18]
    del view
    gc.collect()
    assert told == []
    assert text.to_pylist() == ["a"] * 4
    del text
    gc.collect()
    assert told == ["released"]


def test_only_the_views_of_rows_that_are_ones_own_can_be_written_to():
    own, shared = (round_trip(Block({"x": np.arange(3)}), writable=writable).column("x") for writable in (True, False))
    own[0] = 7
    assert own[0] == 7
    with pytest.raises(ValueError, match="read-only"):
        shared[0] = 7


def test_an_arena_takes_memory_only_where_it_was_written():
    fd, size = arena.made(1)
    try:
        assert size == arena.LEAST_SIZE
        with mmap.mmap(fd, 0) as memory:
            memory[:10] = b"0123456789"
        assert os.fstat(fd).st_blocks * 512 <= 1 << 16
    finally:
        os.close(fd)
