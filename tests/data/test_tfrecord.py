"""TFRecord files as bytes: the frame, its checksums, and the examples within."""

import contextlib
import gzip
import io
import pickle
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.block import Block
from paceline.data.crc32c import computed, crc32c, masked
from paceline.data.sources.examples import Decoder
from paceline.data.tfexample import MalformedExampleError, decoded, examples
from paceline.data.tfrecord import CorruptRecordError, Inflated, framed, records

KNOWN = {b"": 0, b"123456789": 0xE3069283, bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43}
"""From RFC 3720 and the catalogue of checksums."""


@pytest.mark.parametrize(("data", "checksum"), KNOWN.items())
def test_checksums_are_those_of_the_standard(data: bytes, checksum: int) -> None:
    assert computed([data]) == [crc32c(data)] == [checksum]
    assert computed([data, b"123456789"]) == [checksum, 0xE3069283]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=70), st.integers(0, 2000).map(bytes)), max_size=6), st.binary(max_size=9))
def test_our_own_checksums_agree_with_one_bit_at_a_time(datas: list[bytes], end: bytes) -> None:
    def slowly(data: bytes) -> int:
        state = 0xFFFFFFFF
        for byte in data:
            state ^= byte
            for _ in range(8):
                state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
        return state ^ 0xFFFFFFFF

    datas = [data + end for data in datas]
    assert computed(datas) == [slowly(data) for data in datas]


def test_the_mask_is_that_of_the_format() -> None:
    assert masked(0) == 0xA282EAD8
    assert masked(0xFFFFFFFF) == 0xA282EAD7


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=2000), max_size=8), st.sampled_from(["plain", "gzip", "zlib", "members"]))
def test_what_was_framed_is_read(datas: list[bytes], how: str) -> None:
    file = b"".join(map(framed, datas))
    match how:
        case "plain":
            assert list(records(io.BytesIO(file))) == datas
        case "gzip":
            assert list(records(Inflated(io.BytesIO(gzip.compress(file))))) == datas
        case "zlib":
            assert list(records(Inflated(io.BytesIO(zlib.compress(file))))) == datas
        case "members":
            members = b"".join(gzip.compress(framed(data)) for data in datas)
            assert list(records(Inflated(io.BytesIO(members)))) == datas


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.data())
def test_a_flipped_bit_is_found_in_its_record(datas: list[bytes], data: st.DataObject) -> None:
    frames = [framed(record) for record in datas]
    number = data.draw(st.integers(0, len(frames) - 1))
    byte = data.draw(st.integers(0, len(frames[number]) - 1))
    altered = bytearray(frames[number])
    altered[byte] ^= 1 << data.draw(st.integers(0, 7))
    file = b"".join([*frames[:number], bytes(altered), *frames[number + 1 :]])
    with pytest.raises(CorruptRecordError) as caught:
        list(records(io.BytesIO(file)))
    assert caught.value.record == number
    assert caught.value.offset == sum(map(len, frames[:number]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=3), st.data())
def test_a_file_that_was_cut_off_is_found_unless_between_records(datas: list[bytes], data: st.DataObject) -> None:
    frames = [framed(record) for record in datas]
    file = b"".join(frames)
    whole = np.cumsum([0, *map(len, frames)]).tolist()
    end = data.draw(st.integers(0, len(file)))
    if end in whole:
        assert list(records(io.BytesIO(file[:end]))) == datas[: whole.index(end)]
    else:
        with pytest.raises(CorruptRecordError, match="cut off"):
            list(records(io.BytesIO(file[:end])))


def test_compressed_data_that_was_cut_off_is_found() -> None:
    file = gzip.compress(framed(b"a" * 1000) + framed(bytes(range(256)) * 8))
    with pytest.raises((EOFError, CorruptRecordError), match="cut off"):
        list(records(Inflated(io.BytesIO(file[:-20]))))


def test_the_error_of_a_record_pickles() -> None:
    error = pickle.loads(pickle.dumps(CorruptRecordError(3, 99, "it was altered")))
    assert (error.record, error.offset, str(error)) == (3, 99, "record 3 (byte 99): it was altered")


def plain(values: Any) -> list[Any]:
    return values if isinstance(values, list) else values.tolist()


INTS = st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=4)
FLOATS = st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=4)
BYTES = st.lists(st.binary(max_size=6), min_size=1, max_size=3)
ROW = st.fixed_dictionaries({}, optional={"a": INTS, "b": FLOATS, "c": BYTES, "ünï": INTS})


@settings(max_examples=100, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=12))
def test_rows_become_examples_and_rows_again(rows: list[dict[str, Any]]) -> None:
    kinds = {"a": pa.int64(), "b": pa.float32(), "c": pa.binary(), "ünï": pa.int64()}
    table = pa.table({name: pa.array([row.get(name) for row in rows], pa.list_(kind)) for name, kind in kinds.items()})
    datas = list(examples(Block.from_arrow(table)))
    assert [{name: plain(values) for name, values in decoded(data).items()} for data in datas] == rows
    check_together(datas)


def check_together(datas: list[bytes]) -> None:
    """Records decoded many at a time are what each is by itself."""
    for name, feature in Decoder().decode(datas).items():
        values, begin = plain(feature.values), 0
        for data, count in zip(datas, feature.counts.tolist(), strict=True):
            alone = decoded(data)
            assert (name in alone) == (count >= 0)
            if count >= 0:
                assert values[begin : begin + count] == plain(alone[name])
                begin += count
        assert begin == len(values)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(4, 40))
def test_records_that_look_alike_are_read_together_as_each_alone(seed: int, num_rows: int) -> None:
    random = np.random.default_rng(seed)
    block = Block(
        {
            "pixels": random.random((num_rows, 5), dtype=np.float32),
            "label": random.integers(0, 200, num_rows),  # one byte or two
            "ids": random.integers(-3, 1 << 40, (num_rows, 3)),
            "text": [bytes(random.integers(0, 256, random.integers(0, 3), dtype=np.uint8)) for _ in range(num_rows)],
        }
    )
    check_together(list(examples(block)))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 100)), min_size=4, max_size=30))
def test_records_of_one_length_that_look_different_are_told_apart(rows: list[tuple[bool, bool, int]]) -> None:
    block = Block(
        {
            "a": np.array([number + 200 * wide for wide, _, number in rows]),
            "b": np.array([number + 200 * (not wide) for wide, _, number in rows]),
            "c": [b"x" * (1 + long) for _, long, _ in rows],
            "d": [b"y" * (2 - long) for _, long, _ in rows],
        }
    )
    datas = list(examples(block))
    assert len({len(data) for data in datas}) == 1
    check_together(datas)


def test_numbers_that_are_not_packed_are_read() -> None:
    floats = np.array([1.5, -2.0], "<f4").tobytes()
    entry = (
        b"\x0a\x01f\x12\x0c\x12\x0a" + b"\x0d" + floats[:4] + b"\x0d" + floats[4:],
        b"\x0a\x01i\x12\x07\x1a\x05" + b"\x08\x05\x08\x80\x01",
    )
    features = b"".join(b"\x0a" + bytes([len(part)]) + part for part in entry)
    data = b"\x0a" + bytes([len(features)]) + features
    assert {name: plain(values) for name, values in decoded(data).items()} == {"f": [1.5, -2.0], "i": [5, 128]}
    check_together([data] * 5)


def test_one_feature_of_two_kinds_is_an_error_with_the_record() -> None:
    datas = [*examples(Block({"x": np.arange(6)})), *examples(Block({"x": np.ones(1)}))]
    with pytest.raises(MalformedExampleError, match="'x' is a float list, and a int64 list") as caught:
        Decoder().decode(datas)
    assert caught.value.record == 6


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_an_example_or_a_clear_error(data: bytes) -> None:
    try:
        alone: Any = {name: plain(values) for name, values in decoded(data).items()}
    except MalformedExampleError:
        with pytest.raises(MalformedExampleError):
            Decoder().decode([data] * 5)
    else:
        assert sorted(Decoder().decode([data] * 5)) == sorted(alone)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_example_is_read_or_a_clear_error(data: st.DataObject) -> None:
    (good,) = examples(Block({"a": np.array([[1, 300, -1]]), "b": np.ones((1, 2), np.float32), "c": [b"xyz"]}))
    bad = bytearray(good)
    bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedExampleError):
        decoded(bytes(bad))
    with contextlib.suppress(MalformedExampleError):
        check_together([bytes(bad)] * 5)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (np.zeros((1, 2, 2)), r"'x' has tensors of the shape \(2, 2\)"),
        (np.array(["2020-01-01"], "datetime64[D]"), "'x' has values of the type datetime64"),
        (pa.array([{"a": 1}]), "'x' has values of the type dict"),
    ],
)
def test_what_no_feature_can_hold_is_refused_by_column(column: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        list(examples(Block({"x": column})))


def test_a_number_too_large_for_int64_is_refused() -> None:
    with pytest.raises(OverflowError, match="'x' has 18446744073709551615"):
        list(examples(Block({"x": np.array([2**64 - 1], np.uint64)})))


def test_every_plain_type_of_column_has_a_feature() -> None:
    columns = {
        "b": np.array([True, False]),
        "d": np.array([1.5, 2.5]),
        "u": np.array([1, 255], np.uint8),
        "t": ["a", None],
        "l": [[1, 2], []],
        "r": [np.array([1.0]), np.array([1.0, 2.0])],
    }
    first, second = (
        {name: plain(values) for name, values in decoded(data).items()} for data in examples(Block(columns))
    )
    assert first == {"b": [1], "d": [1.5], "u": [1], "t": [b"a"], "l": [1, 2], "r": [1.0]}
    assert second == {"b": [0], "d": [2.5], "u": [255], "l": [], "r": [1.0, 2.0]}
