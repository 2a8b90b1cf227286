"""Blocks hold what they are given: every type, whatever way the rows are cut, joined and looked at."""

import datetime as dt
import decimal
import gc
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data import column
from paceline.data.block import Block, TensorType
from paceline.data.column import concatenate_arrays

VALUES = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "unsigned": st.integers(2**63, 2**64 - 1),
    "huge": st.integers(-(2**80), 2**80),
    "float": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "str": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
    "datetime": st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1)),
    "aware": st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)),
    "date": st.dates(),
    "time": st.times(),
    "timedelta": st.timedeltas(dt.timedelta(-1000), dt.timedelta(1000)),
    "decimal": st.decimals(-1000, 1000, places=2),
    "list": st.lists(st.integers(-5, 5), max_size=3),
    "nested": st.lists(st.lists(st.floats(-1, 1), max_size=2), max_size=2),
    "strings": st.lists(st.text(max_size=2), max_size=2),
    "dict": st.fixed_dictionaries({"a": st.integers(0, 5), "b": st.text(max_size=2)}),
}

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "M8[D]", "M8[s]", "M8[ns]", "m8[us]"]


@st.composite
def columns(draw, nulls=True):
    kind = draw(st.sampled_from(sorted(VALUES)))
    value = VALUES[kind] | st.none() if nulls and draw(st.booleans()) else VALUES[kind]
    return kind, draw(st.lists(value, max_size=6))


def rows_of(block, name="x"):
    return [row[name] for row in block.rows()]


def join(*columns):
    return plain(rows_of(Block.concat([Block({"x": column}) for column in columns])))


def plain(values):
    """Values as Python has them, whatever form of arrays they took on the way."""

    def one(value):
        if isinstance(value, np.ndarray):
            return [one(item) for item in value.tolist()] if value.dtype != object else [one(item) for item in value]
        if isinstance(value, pd.Timestamp | pd.Timedelta):
            return value.to_pydatetime() if isinstance(value, pd.Timestamp) else value.to_pytimedelta()
        if isinstance(value, dict):
            return {name: one(item) for name, item in value.items()}
        return [one(item) for item in value] if isinstance(value, list) else value

    return [one(value) for value in values]


@given(columns(), st.data())
@settings(max_examples=100, deadline=None)
def test_rows_come_back_as_given_however_they_are_cut_taken_and_joined(column, data):
    kind, values = column
    block = Block({"x": values})
    assert block.num_rows == len(values)
    assert rows_of(block) == values
    assert rows_of(pickle.loads(pickle.dumps(block))) == values
    assert all(type(got) is type(given) for got, given in zip(rows_of(block), values, strict=True))
    cut = data.draw(st.integers(0, len(values)))
    parts = [block.slice(0, cut), Block.empty(), block.slice(cut)]
    assert [row for part in parts for row in rows_of(part) if part.columns] == values
    assert rows_of(Block.concat(parts)) == values
    taken = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=8)) if values else []
    assert rows_of(block.take(taken)) == [values[index] for index in taken]
    if kind != "huge":
        assert rows_of(Block.from_batch(block.to_arrow())) == values
    elif any(value is not None and not -(2**63) <= value < 2**64 for value in values):
        with pytest.raises(TypeError, match="cannot convert the column 'x' to Arrow"):
            block.to_arrow()


@given(columns(nulls=False))
@settings(max_examples=60, deadline=None)
def test_numpy_and_pandas_and_back_keep_the_values(column):
    kind, values = column
    block = Block({"x": values})
    array, frame = block.to_numpy()["x"], block.to_pandas()
    assert len(array) == len(frame) == len(values)
    assert plain(rows_of(Block.from_batch(frame))) == values
    if kind != "aware":  # NumPy has no time zones.
        assert plain(rows_of(Block.from_batch({"x": array}))) == values


@given(st.lists(columns(), min_size=2, max_size=3))
@settings(max_examples=80, deadline=None)
def test_columns_of_different_types_are_joined_without_losing_a_value(mixed):
    expected = [value for _, values in mixed for value in values]
    got = join(*(values for _, values in mixed)) if expected else []
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        # A type that holds the values of both may be wider: an int among floats is a float, a date among times a time.
        widened = (isinstance(other, int) and one == float(other)) or (
            isinstance(other, dt.date) and one == dt.datetime(other.year, other.month, other.day)
        )
        assert one == other or widened


@pytest.mark.parametrize(
    "values",
    [
        [b"a", "a", None],
        [0.5, decimal.Decimal("0.01")],
        [np.int64(-1), np.uint64(2**64 - 1)],
        [np.int64(-1), np.datetime64("2024-01-01", "s")],
        [np.int64(-1), np.bool_(True)],
    ],
    ids=str,
)
def test_values_that_no_common_type_holds_stay_what_they_are(values):
    found = join(*(np.array([value]) if isinstance(value, np.generic) else [value] for value in values))
    expected = [value.item() if isinstance(value, np.generic) else value for value in values]
    assert [(type(value), value) for value in found] == [(type(value), value) for value in expected]


@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 100), max_size=5), st.sampled_from([(), (2,), (2, 3), (0,)]))
@settings(max_examples=60, deadline=None)
def test_every_type_of_numpy_keeps_its_type_in_and_out_of_arrow(dtype, values, shape):
    array = np.broadcast_to(
        np.asarray(values, "i8").reshape(-1, *[1] * len(shape)), (len(values), *shape)
    ).astype(dtype)  # fmt: skip
    block = Block({"x": array})
    assert block.to_numpy()["x"] is array
    back = Block.from_batch(block.to_arrow()).to_numpy()["x"]
    halves = Block.concat([block.slice(0, 1), block.slice(1)]).to_numpy()["x"]
    for found in (back, halves):
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert (found == array).all()
    if not shape and dtype[0] not in "Mm":
        assert {type(value) for value in rows_of(block)} <= {int, float, bool}


def test_rows_have_pythons_times():
    moment = dt.datetime(2024, 2, 29, 12, 30)
    for unit in ("s", "ms", "us", "ns"):
        values = np.array([moment, "NaT"], f"M8[{unit}]")
        assert rows_of(Block({"x": values})) == [moment, None]
    fine = np.array(["2024-02-29T12:30:00.000000001"], "M8[ns]")
    assert rows_of(Block({"x": fine})) == [fine[0]]


def test_arrays_of_different_shapes_and_missing_ones_are_an_array_of_arrays():
    block = Block({"x": [np.zeros((1, 2), "f4"), None, np.ones((3, 2), "f4")]})
    assert block.schema.types == [TensorType(np.dtype("f4"), None)]
    for found in (rows_of(block), Block.from_batch(block.to_arrow()).to_numpy()["x"]):
        assert [v if v is None else (v.shape, v.dtype.str) for v in found] == [((1, 2), "<f4"), None, ((3, 2), "<f4")]
    assert rows_of(block.slice(2))[0].shape == (3, 2)
    kind = pa.fixed_shape_tensor(pa.float32(), (2,))
    storage = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32(), 2))
    block = Block.from_batch(pa.table({"x": pa.ExtensionArray.from_storage(kind, storage)}))
    assert plain(rows_of(block)) == [[1, 2], None, [3, 4]]
    assert block.schema.types == [TensorType(np.dtype("f4"), None)]


def test_tensors_lists_and_dictionaries_of_other_blocks_are_joined():
    lists, tensors, ragged = pa.array([[1.0, 2.0]]), np.array([[3.0, 4.0]]), [np.array([5.0]), np.array([6.0, 7.0])]
    assert Block.concat([Block({"x": lists}), Block({"x": tensors})]).to_numpy()["x"].tolist() == [[1, 2], [3, 4]]
    assert join(lists, tensors, ragged) == [[1, 2], [3, 4], [5], [6, 7]]
    other = Block.concat([Block({"x": tensors}), Block({"y": [1]})])
    assert plain(rows_of(other)) == [[3, 4], None]
    assert rows_of(other, "y") == [None, 1]
    words = pa.array(["a", "b"]).dictionary_encode()
    assert join(words, ["c"], words.slice(1)) == ["a", "b", "c", "b"]
    assert Block({"x": words}).to_numpy()["x"].tolist() == ["a", "b"]
    assert Block.concat([Block({"x": np.array([1], dtype)}) for dtype in ("i4", "i8")]).to_numpy()["x"].dtype == "i8"


def test_blocks_without_rows_keep_their_columns_and_rows_without_columns_are_still_rows():
    block = Block({"x": np.zeros((0, 3), "f4"), "y": pa.array([], pa.string())})
    assert Block.concat([Block.empty(), block, block]).schema.names == ["x", "y"]
    assert block.to_numpy()["x"].shape == Block.from_batch(block.to_arrow()).to_numpy()["x"].shape == (0, 3)
    assert list(block.to_pandas().columns) == ["x", "y"]
    assert list(block.rows()) == []
    assert Block.from_batch(pa.table({"x": pa.chunked_array([], pa.list_(pa.int64()))})).to_numpy()["x"].shape == (0,)
    bare = Block({"x": [1, 2]}).drop(["x"])
    assert bare.num_rows == 2
    assert list(bare.rows()) == [{}, {}]
    assert list(bare.slice(1).rows()) == [{}]


def test_a_frame_may_hold_what_pandas_takes_for_missing():
    frame = pd.DataFrame(
        {
            "text": ["a", None],
            "object": pd.Series(["a", float("nan")], dtype=object),
            "whole": pd.array([1, None], dtype="Int64"),
            "flag": pd.array([True, None], dtype="boolean"),
            "kind": pd.Series(["x", None], dtype="category"),
            "time": pd.to_datetime(["2024-01-01", None]),
            "zoned": pd.to_datetime(["2024-01-01", None]).tz_localize("UTC"),
            "arrow": pd.Series([1, None], dtype=pd.ArrowDtype(pa.int32())),
            "array": [np.zeros(2), None],
        }
    )
    first, second = Block.from_batch(frame).rows()
    assert {name: value for name, value in second.items() if value is not None} == {}
    assert (first["whole"], first["kind"], first["time"]) == (1, "x", dt.datetime(2024, 1, 1))
    assert first["array"].tolist() == [0, 0]


def test_a_column_may_be_a_series_a_tensor_or_any_sequence():
    import torch

    block = Block(
        {
            "series": pd.Series([1, 2], dtype="Int64"),
            "tensor": torch.ones(2, 3, requires_grad=True),
            "tensors": [torch.zeros(2), torch.ones(2)],
            "range": range(2),
            "words": np.array(["a", "b"]),
            "strings": np.array([["a"], ["b"]]),
        }
    )
    assert [(type(v), v) for v in rows_of(block, "series")] == [(int, 1), (int, 2)]
    assert block.columns["tensor"].shape == (2, 3)
    assert block.columns["tensors"].shape == (2, 2)
    assert rows_of(block, "range") == [0, 1]
    assert rows_of(block, "words") == ["a", "b"]
    assert rows_of(block, "strings") == [["a"], ["b"]]


def test_a_missing_column_is_named_with_those_that_are_there_and_a_schema_prints_all():
    block = Block({"image": np.zeros((1, 2, 2), "u1"), "label": ["a"], "price": [decimal.Decimal("1.5")]})
    for ask in (lambda: block.select(["z"]), lambda: block.drop(["z"]), lambda: block.rename({"z": "a"})):
        with pytest.raises(KeyError, match="unknown column 'z'; the columns are: 'image', 'label', 'price'"):
            ask()
    with pytest.raises(ValueError, match=r"gives two of the columns .* one name"):
        block.rename({"image": "label"})
    assert str(block.schema).splitlines()[2:] == [
        "image   numpy.ndarray(shape=(2, 2), dtype=uint8)",
        "label   string",
        "price   decimal128(2, 1)",
    ]


LARGE = 300_000


@pytest.fixture(autouse=True)
def fresh_scratch(monkeypatch):
    monkeypatch.setattr(column, "_scratch", column._ScratchMemory())


def halves(value):
    return [np.full(LARGE, value), np.full(LARGE, value + 1)]


@pytest.mark.parametrize("dtypes", [("f4", "f4"), ("u1", "u1"), ("M8[ns]", "M8[ns]"), (object, object), ("i4", "f4")])
def test_it_is_what_numpy_gives(dtypes):
    arrays = [np.zeros((200_000, 3), dtypes[0]), np.ones((300_000, 3), dtypes[1])]
    assert (concatenate_arrays(arrays) == np.concatenate(arrays)).all()
    assert concatenate_arrays(arrays).dtype == np.concatenate(arrays).dtype


def test_memory_is_used_again_once_the_last_view_is_gone():
    first = concatenate_arrays(halves(1))
    address, view = first.ctypes.data, first[10:20]
    del first
    gc.collect()
    second = concatenate_arrays(halves(3))
    assert second.ctypes.data != address
    assert view.tolist() == [1] * 10
    del view
    gc.collect()
    third = concatenate_arrays(halves(5))
    assert third.ctypes.data == address
    assert concatenate_arrays(halves(7)).ctypes.data not in (address, second.ctypes.data)


def test_no_more_than_so_much_is_held_for_later(monkeypatch):
    monkeypatch.setattr(column, "_MAX_UNUSED_BYTES", 10 << 20)
    arrays = [concatenate_arrays(halves(value)) for value in range(8)]
    del arrays
    gc.collect()
    assert 0 < column._scratch._num_free <= 10 << 20
    assert column._scratch._num_free == sum(map(len, column._scratch._free))
