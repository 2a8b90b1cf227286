"""TFRecord files: the frame, its checksums, the examples within, and the rows that `read_tfrecords` makes of them."""

import gzip
import io
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import block

from paceline.data.block import Block
from paceline.data.read import read_tfrecords
from paceline.data.sources import tf_examples, tfrecords
from paceline.data.sources.tf_examples import ExampleDecoder, MalformedExampleError, encode_examples
from paceline.data.sources.tfrecords import CorruptRecordError, InflatingReader, frame_record, read_records

KNOWN = {b"": 0, b"123456789": 0xE3069283, bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43}
"""From RFC 3720 and the catalogue of checksums."""


@pytest.mark.parametrize(("data", "checksum"), KNOWN.items())
def test_checksums_are_those_of_the_standard_and_masked(data, checksum):
    rotated = (checksum >> 15 | checksum << 17) & 0xFFFFFFFF
    assert tfrecords.masked_checksum(data) == (rotated + 0xA282EAD8) & 0xFFFFFFFF


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=2000), max_size=8), st.sampled_from(["plain", "gzip", "zlib", "members"]))
def test_what_was_framed_is_read(datas, how):
    file = b"".join(map(frame_record, datas))
    written = {
        "plain": io.BytesIO(file),
        "gzip": InflatingReader(io.BytesIO(gzip.compress(file))),
        "zlib": InflatingReader(io.BytesIO(zlib.compress(file))),
        "members": InflatingReader(io.BytesIO(b"".join(gzip.compress(frame_record(data)) for data in datas))),
    }
    assert list(read_records(written[how])) == datas


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=4), st.data())
def test_a_flipped_bit_is_found_in_its_record(datas, data):
    frames = [frame_record(record) for record in datas]
    number = data.draw(st.integers(0, len(frames) - 1))
    byte = data.draw(st.integers(0, len(frames[number]) - 1))
    altered = bytearray(frames[number])
    altered[byte] ^= 1 << data.draw(st.integers(0, 7))
    file = b"".join([*frames[:number], bytes(altered), *frames[number + 1 :]])
    with pytest.raises(CorruptRecordError) as caught:
        list(read_records(io.BytesIO(file)))
    assert caught.value.record == number
    assert caught.value.offset == sum(map(len, frames[:number]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=3), st.data())
def test_a_file_that_was_cut_off_is_found_unless_between_records(datas, data):
    frames = [frame_record(record) for record in datas]
    file = b"".join(frames)
    whole = np.cumsum([0, *map(len, frames)]).tolist()
    end = data.draw(st.integers(0, len(file)))
    if end in whole:
        assert list(read_records(io.BytesIO(file[:end]))) == datas[: whole.index(end)]
    else:
        with pytest.raises(CorruptRecordError, match="cut off"):
            list(read_records(io.BytesIO(file[:end])))


def decode_example(data):
    return {span.name: plain(tf_examples.read_feature(data, span)) for span in tf_examples.find_feature_spans(data)}


def plain(values):
    return values if isinstance(values, list) else values.tolist()


INTS = st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=4)
FLOATS = st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=4)
BYTES = st.lists(st.binary(max_size=6), min_size=1, max_size=3)
ROW = st.fixed_dictionaries({}, optional={"a": INTS, "b": FLOATS, "c": BYTES, "ünï": INTS})


@settings(max_examples=100, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=12))
def test_rows_become_examples_and_rows_again(rows):
    kinds = {"a": pa.int64(), "b": pa.float32(), "c": pa.binary(), "ünï": pa.int64()}
    table = pa.table({name: pa.array([row.get(name) for row in rows], pa.list_(kind)) for name, kind in kinds.items()})
    datas = list(encode_examples(Block.from_arrow(table)))
    assert [decode_example(data) for data in datas] == rows
    check_together(datas)


def check_together(datas):
    """Records decoded many at a time are what each is by itself."""
    for name, feature in ExampleDecoder().decode(datas).items():
        values, begin = plain(feature.values), 0
        for data, count in zip(datas, feature.counts.tolist(), strict=True):
            alone = decode_example(data)
            assert (name in alone) == (count >= 0)
            if count >= 0:
                assert values[begin : begin + count] == alone[name]
                begin += count
        assert begin == len(values)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(4, 40))
def test_records_that_look_alike_are_read_together_as_each_alone(seed, num_rows):
    random = np.random.default_rng(seed)
    alike = {
        "pixels": random.random((num_rows, 5), dtype=np.float32),
        "label": random.integers(0, 200, num_rows),  # one byte or two
        "ids": random.integers(-3, 1 << 40, (num_rows, 3)),
        "text": [bytes(random.integers(0, 256, random.integers(0, 3), dtype=np.uint8)) for _ in range(num_rows)],
    }
    check_together(list(encode_examples(Block(alike))))
    wide, long = random.integers(0, 2, (2, num_rows))
    of_one_length = {
        "a": random.integers(0, 100) + 200 * wide,
        "b": random.integers(0, 100) + 200 * (1 - wide),
        "c": [b"x" * (1 + each) for each in long],
        "d": [b"y" * (2 - each) for each in long],
    }
    datas = list(encode_examples(Block(of_one_length)))
    assert len({len(data) for data in datas}) == 1
    check_together(datas)


def test_numbers_that_are_not_packed_are_read():
    floats = np.array([1.5, -2.0], "<f4").tobytes()
    entry = (
        b"\x0a\x01f\x12\x0c\x12\x0a" + b"\x0d" + floats[:4] + b"\x0d" + floats[4:],
        b"\x0a\x01i\x12\x07\x1a\x05" + b"\x08\x05\x08\x80\x01",
    )
    features = b"".join(b"\x0a" + bytes([len(part)]) + part for part in entry)
    data = b"\x0a" + bytes([len(features)]) + features
    assert decode_example(data) == {"f": [1.5, -2.0], "i": [5, 128]}
    check_together([data] * 5)


(GOOD,) = encode_examples(Block({"a": np.array([[1, 300, -1]]), "b": np.ones((1, 2), np.float32), "c": [b"xyz"]}))
DAMAGED = st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)).map(
    lambda change: GOOD[: change[0]] + bytes([change[1]]) + GOOD[change[0] + 1 :]
)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | DAMAGED)
def test_any_bytes_are_an_example_or_a_clear_error(data):
    try:
        alone = decode_example(data)
    except MalformedExampleError:
        with pytest.raises(MalformedExampleError):
            ExampleDecoder().decode([data] * 5)
    else:
        assert sorted(ExampleDecoder().decode([data] * 5)) == sorted(alone)
        check_together([data] * 5)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (np.zeros((1, 2, 2)), r"'x' must be one-dimensional .* shape \(2, 2\)"),
        (np.array(["2020-01-01"], "datetime64[D]"), "'x' must have integers, .* got datetime64"),
        (pa.array([{"a": 1}]), "'x' must have integers, .* got dict"),
        (np.array([2**64 - 1], np.uint64), "'x' has 18446744073709551615"),
    ],
)
def test_what_no_feature_can_hold_is_refused_by_column(column, message):
    with pytest.raises((TypeError, OverflowError), match=message):
        list(encode_examples(Block({"x": column})))


def content(columns):
    return b"".join(map(frame_record, encode_examples(Block(columns))))


def test_features_of_one_value_are_values_and_others_lists(tmp_path):
    columns = {
        "label": np.array([3, 1, 200]),
        "weight": np.array([0.5, 1.5, 2.5], np.float32),
        "pixels": np.arange(6, dtype=np.float32).reshape(3, 2),
        "tags": [[1], [2, 3], []],
        "missing": [1, None, 3],
        "missing list": [[1.0, 2.0], None, [3.0]],
        "missing text": ["a", None, None],
        "flag": np.array([True, False, True]),
        "double": np.array([1.5, 2.5, -1.0]),
        "byte": np.array([1, 255, 0], np.uint8),
        "ragged": [np.array([1.0]), np.array([1.0, 2.0]), np.array([])],
    }
    (tmp_path / "a.tfrecord").write_bytes(content(columns))
    found = block(read_tfrecords(tmp_path))
    assert found.columns["label"].tolist() == [3, 1, 200]
    assert found.columns["weight"].dtype == np.float32
    np.testing.assert_array_equal(found.to_numpy()["pixels"], columns["pixels"])
    for name in ("tags", "missing", "missing list"):
        assert found.columns[name].to_pylist() == columns[name]
    assert [found.columns[name].tolist() for name in ("flag", "double", "byte")] == [
        [1, 0, 1],
        [1.5, 2.5, -1.0],
        [1, 255, 0],
    ]
    assert found.columns["ragged"].to_pylist() == [[1.0], [1.0, 2.0], []]
    assert found.columns["tags"].type == pa.list_(pa.int64())
    assert found.columns["missing text"].to_pylist() == [b"a", None, None]


@pytest.mark.parametrize(
    ("name", "packed", "compression"),
    [
        ("a.tfrecord.gz", gzip.compress, None),
        ("a.tfrecord", gzip.compress, "GZIP"),
        ("a.tfrecord", zlib.compress, "ZLIB"),
    ],
)
def test_packed_files_are_read_and_truncated_ones_are_named(tmp_path, name, packed, compression):
    data = packed(content({"x": np.arange(5000)}))
    (tmp_path / name).write_bytes(data)
    assert block(read_tfrecords(tmp_path, compression=compression)).columns["x"].tolist() == [*range(5000)]
    (tmp_path / name).write_bytes(data[:-200])
    with pytest.raises(ValueError, match=rf"cannot read \S*{name} as TFRecords .*(cut off|Truncated)"):
        block(read_tfrecords(tmp_path, compression=compression))


def test_a_feature_of_values_that_gets_several_late_is_an_error_with_a_hint(tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecords, "_RECORDS", 4)
    (tmp_path / "a.tfrecord").write_bytes(content({"x": [[1]] * 6 + [[2, 3]]}))
    with pytest.raises(ValueError, match=r"a\.tfrecord .*record 6: feature 'x' has 2 values(.|\n)*hint: .*tf_schema"):
        block(read_tfrecords(tmp_path))
    found = block(read_tfrecords(tmp_path, tf_schema={"x": pa.list_(pa.int64())}))
    assert found.columns["x"].to_pylist() == [[1]] * 6 + [[2, 3]]
    (tmp_path / "a.tfrecord").write_bytes(content({"x": [[1, 2], *([[3]] * 6)]}))
    assert block(read_tfrecords(tmp_path)).columns["x"].to_pylist() == [[1, 2], *([[3]] * 6)]


def test_values_are_cast_to_the_types_of_the_schema_or_refused(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(content({"name": ["a", "ü"], "n": np.array([1, 2])}))
    schema = pa.schema([("name", pa.string()), ("n", pa.int8()), ("absent", pa.float32())])
    found = block(read_tfrecords(tmp_path, tf_schema=schema))
    assert found.columns["name"].to_pylist() == ["a", "ü"]
    assert found.columns["n"].type == pa.int8()
    assert found.columns["absent"].to_pylist() == [None, None]
    (tmp_path / "a.tfrecord").write_bytes(content({"n": np.array([1, 1000])}))
    with pytest.raises(ValueError, match=r"a\.tfrecord .*cannot convert feature 'n' to int8, its type in tf_schema"):
        block(read_tfrecords(tmp_path, tf_schema={"n": pa.int8()}))


def test_only_the_requested_columns_are_read(tmp_path):
    (tmp_path / "a.tfrecord").write_bytes(content({"x": np.arange(2), "y": np.arange(2)}))
    source = read_tfrecords(tmp_path, include_paths=True)._plan.source
    (unit,) = source.project_columns(["y"]).units()
    assert [list(one.columns) for one in unit.read()] == [["y"]]
    (unit,) = source.project_columns(["path"]).units()
    assert [one.num_rows for one in unit.read()] == [2]
    with pytest.raises(KeyError, match=r"unknown column 'z'; the columns are: 'x', 'y'"):
        block(read_tfrecords(tmp_path).select_columns(["z"]), optimize=True)
