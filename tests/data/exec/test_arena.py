"""Blocks in shared memory come back as they were, as views, and it is known when the last view is gone."""

import gc
import mmap
import os

import numpy as np
import pyarrow as pa
import pytest

from paceline.data.block import Block
from paceline.data.exec import arena, packed_blocks

DTYPES = [
    "bool", "int8", "int64", "uint8", "uint64", "float16", "float32", "complex128", ">i4", ">f8", "datetime64[ns]",
    "datetime64[D]", "timedelta64[s]",
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


def round_trip(block, released=lambda: None):
    written = packed_blocks.BlockWriter(block)
    fd, size = arena.create_arena(written.layout.nbytes)
    assert size >= written.layout.nbytes
    theirs = arena.map_arena(os.dup(fd))
    written.write_into(theirs)
    return packed_blocks.read_shared(written.layout, arena.map_arena(fd), released, writable=True)


@pytest.mark.parametrize("rows", [0, 3])
def test_columns_of_every_type_and_shape_come_back_in_their_order(rows):
    columns = {str(values.type): values.slice(0, rows) for values in ARROW}
    for dtype in DTYPES:
        for shape in ((rows,), (rows, 4), (rows, 2, 2), (rows, 0)):
            columns[f"ä {dtype} {shape}"] = np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)
    base = np.arange(rows * 8).reshape(rows, 8)
    for values in (base[:, ::2], base[::-1], np.asfortranarray(base)):
        columns[f"strides {values.strides}"] = values
    columns["structured"] = np.array([(1, 2.0), (3, 4.0), (5, 6.0)], dtype=[("a", "i4"), ("b", "f8")])[:rows]
    ragged = np.empty(rows, dtype=object)
    ragged[:] = [np.arange(row) for row in range(rows)]
    read = round_trip(Block({**columns, "ragged": ragged}))
    assert list(read.columns) == [*columns, "ragged"]
    assert [row.tolist() for row in read.column("ragged")] == [row.tolist() for row in ragged]
    for name, values in columns.items():
        found = read.column(name)
        if isinstance(values, np.ndarray):
            assert (found.dtype, found.shape) == (values.dtype, values.shape), name
            assert np.array_equal(found, values), name
        else:
            assert (found.type, found.to_pylist()) == (values.type, values.to_pylist())
    assert round_trip(Block({}, num_rows=7)).num_rows == 7


def test_a_slice_of_arrow_columns_takes_the_room_of_the_slice():
    whole = Block({"x": pa.array([f"row {number}" for number in range(10_000)])})
    assert packed_blocks.BlockWriter(whole.slice(5, 8)).layout.nbytes < 2000
    assert round_trip(whole.slice(5, 8)).column("x").to_pylist() == ["row 5", "row 6", "row 7"]


def test_memory_is_released_when_the_last_view_is_gone_and_not_before():
    released = []
    block = round_trip(Block({"x": np.arange(100), "s": pa.array(["a"] * 100)}), lambda: released.append("released"))
    view, text = block.column("x")[10:20][::2], block.column("s").slice(3, 4)
    del block
    gc.collect()
    assert released == []
    assert view.tolist() == [10, 12, 14, 16, 18]
    del view
    gc.collect()
    assert released == []
    assert text.to_pylist() == ["a"] * 4
    del text
    gc.collect()
    assert released == ["released"]


def test_an_arena_takes_memory_only_where_it_was_written():
    fd, size = arena.create_arena(1)
    try:
        assert size == arena.MIN_ARENA_BYTES
        with mmap.mmap(fd, 0) as memory:
            memory[:10] = b"0123456789"
        assert os.fstat(fd).st_blocks * 512 <= 1 << 16
    finally:
        os.close(fd)
