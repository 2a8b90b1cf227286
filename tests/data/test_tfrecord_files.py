"""TFRecord files as rows."""

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from read_back import block, pipeline

from paceline.data.block import Block
from paceline.data.read_media import read_tfrecords
from paceline.data.sources import tfrecords
from paceline.data.tfexample import examples
from paceline.data.tfrecord import framed


def content(columns: Any) -> bytes:
    return b"".join(map(framed, examples(Block(columns))))


def test_features_of_one_value_are_values_and_others_lists(tmp_path: Path) -> None:
    columns = {
        "label": np.array([3, 1, 200]),
        "weight": np.array([0.5, 1.5, 2.5], np.float32),
        "name": ["a", "b", "c"],
        "pixels": np.arange(6, dtype=np.float32).reshape(3, 2),
        "tags": [[1], [2, 3], []],
    }
    (tmp_path / "a.tfrecord").write_bytes(content(columns))
    found = block(read_tfrecords(tmp_path))
    assert found.columns["label"].tolist() == [3, 1, 200]
    assert found.columns["weight"].dtype == np.float32
    assert found.columns["name"].to_pylist() == [b"a", b"b", b"c"]
    np.testing.assert_array_equal(found.to_numpy()["pixels"], columns["pixels"])
    assert found.columns["tags"].to_pylist() == [[1], [2, 3], []]
    assert found.columns["tags"].type == pa.list_(pa.int64())


def test_a_record_that_lacks_a_feature_is_null_there(tmp_path: Path) -> None:
    columns = {"n": [1, None, 3], "x": [[1.0, 2.0], None, [3.0]], "s": ["a", None, None], "k": np.arange(3)}
    (tmp_path / "a.tfrecord").write_bytes(content(columns))
    found = block(read_tfrecords(tmp_path))
    assert found.columns["n"].to_pylist() == [1, None, 3]
    assert found.columns["x"].to_pylist() == [[1.0, 2.0], None, [3.0]]
    assert found.columns["s"].to_pylist() == [b"a", None, None]


def test_files_come_one_after_the_other_with_their_paths(tmp_path: Path) -> None:
    for number, name in enumerate("ba"):
        (tmp_path / f"{name}.tfrecord").write_bytes(content({"x": np.array([number, number + 10])}))
    dataset = read_tfrecords(tmp_path, include_paths=True)
    assert [task.unit.name for task in pipeline(dataset).tasks] == ["a.tfrecord", "b.tfrecord"]
    found = block(dataset)
    assert found.columns["x"].tolist() == [1, 11, 0, 10]
    assert found.columns["path"].to_pylist()[0] == str(tmp_path / "a.tfrecord")


@pytest.mark.parametrize(
    ("name", "packed", "compression"),
    [
        ("a.tfrecord.gz", gzip.compress, None),
        ("a.tfrecord", gzip.compress, "GZIP"),
        ("a.tfrecord.gz", gzip.compress, "GZIP"),
        ("a.tfrecord", zlib.compress, "ZLIB"),
    ],
)
def test_packed_files_are_read(tmp_path: Path, name: str, packed: Any, compression: Any) -> None:
    (tmp_path / name).write_bytes(packed(content({"x": np.arange(5000)})))
    assert block(read_tfrecords(tmp_path, compression=compression)).columns["x"].tolist() == [*range(5000)]


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"")
    (tmp_path / "b.tfrecord").write_bytes(content({"x": np.arange(2)}))
    assert block(read_tfrecords(tmp_path)).columns["x"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda data: data[:-3], r"record 4999 \(byte \d+\): the file ends \d+ bytes .*cut off"),
        (lambda data: data[:-4] + bytes([data[-4] ^ 1]) + data[-3:], r"record 4999 \(byte \d+\): its data .*altered"),
        (lambda data: data[:14] + bytes([data[14] ^ 1]) + data[15:], r"record 0 \(byte \d+\): its data .*altered"),
        (lambda data: b"\x01" + data[1:], r"record 0 \(byte 0\): its length .*altered"),
        (gzip.compress, r"record 0 \(byte 0\): its length does not have its checksum: .*compressed"),
        (lambda data: data + framed(b"\xff\xff"), r"record 5000: byte 0: a number does not end"),
    ],
    ids=["cut off", "checksum", "data", "length", "packed", "no example"],
)
def test_a_broken_file_is_named_with_its_record(tmp_path: Path, alter: Any, message: str) -> None:
    (tmp_path / "a.tfrecord").write_bytes(alter(content({"x": np.arange(5000)})))
    with pytest.raises(ValueError, match=rf"a\.tfrecord cannot be read as TFRecords of tf.train.Example: {message}"):
        block(read_tfrecords(tmp_path))


def test_a_packed_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    packed = gzip.compress(content({"x": np.random.default_rng(0).random(3000)}))
    (tmp_path / "a.tfrecord").write_bytes(packed[:-200])
    with pytest.raises(ValueError, match=r"a\.tfrecord cannot be read as TFRecords .*cut off"):
        block(read_tfrecords(tmp_path, compression="GZIP"))


def test_a_feature_that_gets_several_values_late_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tfrecords, "_RECORDS", 4)
    (tmp_path / "a.tfrecord").write_bytes(content({"x": [[1]] * 6 + [[2, 3]]}))
    with pytest.raises(ValueError, match=r"a\.tfrecord .*record 6: feature 'x' has 2 values(.|\n)*hint: .*tf_schema"):
        block(read_tfrecords(tmp_path))
    found = block(read_tfrecords(tmp_path, tf_schema={"x": pa.list_(pa.int64())}))
    assert found.columns["x"].to_pylist() == [[1]] * 6 + [[2, 3]]


def test_a_feature_of_lists_stays_one_in_later_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecords, "_RECORDS", 2)
    (tmp_path / "a.tfrecord").write_bytes(content({"x": [[1, 2], [3], [4], [5]]}))
    assert block(read_tfrecords(tmp_path)).columns["x"].to_pylist() == [[1, 2], [3], [4], [5]]


def test_types_that_are_given_are_cast_to(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(content({"name": ["a", "ü"], "n": np.array([1, 2])}))
    schema = pa.schema([("name", pa.string()), ("n", pa.int8()), ("absent", pa.float32())])
    found = block(read_tfrecords(tmp_path, tf_schema=schema))
    assert found.columns["name"].to_pylist() == ["a", "ü"]
    assert found.columns["n"].type == pa.int8()
    assert found.columns["absent"].to_pylist() == [None, None]


def test_a_type_that_does_not_fit_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(content({"n": np.array([1, 1000])}))
    with pytest.raises(ValueError, match=r"a\.tfrecord .*feature 'n' cannot be int8, as tf_schema has it"):
        block(read_tfrecords(tmp_path, tf_schema={"n": pa.int8()}))


def test_one_feature_of_two_kinds_is_named_with_its_record(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(content({"x": np.arange(2)}) + content({"x": np.ones(1)}))
    with pytest.raises(ValueError, match=r"a\.tfrecord .*record 2: feature 'x' is a float list, and a int64 list"):
        block(read_tfrecords(tmp_path))


def test_only_the_columns_asked_for_are_made(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(content({"x": np.arange(2), "y": np.arange(2)}))
    source = read_tfrecords(tmp_path, include_paths=True)._plan.source  # type: ignore[attr-defined]
    (unit,) = source.projected(["y"]).units()
    assert [list(block.columns) for block in unit.read()] == [["y"]]
    (unit,) = source.projected(["path"]).units()
    assert [block.num_rows for block in unit.read()] == [2]


def test_a_column_that_is_not_there_is_an_error_that_says_which_are(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(content({"x": np.arange(2), "y": np.arange(2)}))
    with pytest.raises(KeyError, match=r"no column 'z'; there are: 'x', 'y'"):
        block(read_tfrecords(tmp_path).select_columns(["z"]), optimize=True)


def test_bad_arguments_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"")
    with pytest.raises(ValueError, match="compression='gz' must be 'GZIP', 'ZLIB' or None"):
        read_tfrecords(tmp_path, compression="gz")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"tf_schema\['x'\]='int' must be an Arrow type"):
        read_tfrecords(tmp_path, tf_schema={"x": "int"})
    with pytest.raises(TypeError, match="tf_schema=5 must be a dict"):
        read_tfrecords(tmp_path, tf_schema=5)  # type: ignore[arg-type]
