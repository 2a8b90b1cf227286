"""What a writer of ours wrote, a reader of ours reads: the same rows, in the same order."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from rows_in_units import dataset_of

import paceline.data

UNITS: tuple[list[dict[str, Any]], ...] = (
    [{"x": np.arange(3), "y": np.array([0.5, 1.5, 2.5]), "text": pa.array(["a", None, "ü"])}],
    [{"x": np.arange(3, 5), "y": np.array([3.5, 4.5]), "text": pa.array(["d", "e"])}],
)
EXPECTED = [{"x": x, "y": x + 0.5, "text": text} for x, text in enumerate(["a", None, "ü", "d", "e"])]


@pytest.mark.parametrize(
    ("written", "read", "arguments"),
    [
        ("write_parquet", paceline.data.read_parquet, {}),
        ("write_parquet", paceline.data.read_parquet, {"max_rows_per_file": 2}),
        ("write_csv", paceline.data.read_csv, {}),
        ("write_csv", paceline.data.read_csv, {"compression": "gzip"}),
        ("write_json", paceline.data.read_json, {}),
        ("write_json", paceline.data.read_json, {"compression": "gzip"}),
        ("write_tfrecords", paceline.data.read_tfrecords, {}),
    ],
)
def test_rows_come_back_in_their_order(written: str, read: Any, arguments: dict[str, Any], tmp_path: Path) -> None:
    getattr(dataset_of(*UNITS), written)(str(tmp_path / "out"), **arguments)
    back = read(str(tmp_path / "out")).take_all()
    for row in back:
        if isinstance(row["text"], bytes):
            row["text"] = row["text"].decode()
        elif written == "write_csv" and row["text"] is None:
            row["text"] = ""
    expected = [{**row, "text": row["text"] or ""} for row in EXPECTED] if written == "write_csv" else EXPECTED
    assert [{name: row[name] for name in ("x", "y", "text")} for row in back] == expected


def test_partitions_come_back_as_columns(tmp_path: Path) -> None:
    rows = {"kind": pa.array(["a b", "c", "a b"]), "x": np.arange(3)}
    dataset_of([rows]).write_parquet(tmp_path / "out", partition_cols=["kind"])
    back = paceline.data.read_parquet(str(tmp_path / "out")).take_all()
    assert sorted((row["kind"], row["x"]) for row in back) == [("a b", 0), ("a b", 2), ("c", 1)]


def test_tensors_come_back_as_tensors(tmp_path: Path) -> None:
    image = np.arange(24, dtype=np.uint8).reshape(2, 2, 3, 2)
    dataset_of([{"image": image}]).write_parquet(tmp_path / "parquet")
    dataset_of([{"image": image}]).write_numpy(tmp_path / "numpy", column="image")
    for back in (
        paceline.data.read_parquet(str(tmp_path / "parquet")).take_batch(2)["image"],
        paceline.data.read_numpy(str(tmp_path / "numpy")).take_batch(2)["data"],
    ):
        assert back.dtype == np.uint8
        np.testing.assert_array_equal(back, image)


def test_images_come_back(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), np.uint8)
    dataset_of([{"image": images[:2]}], [{"image": images[2:]}]).write_images(tmp_path / "out", "image")
    back = paceline.data.read_images(str(tmp_path / "out")).take_all()
    np.testing.assert_array_equal(np.stack([row["image"] for row in back]), images)


def test_samples_of_webdataset_come_back(tmp_path: Path) -> None:
    rows = {"__key__": pa.array(["a", "b", "c"]), "txt": pa.array(["x", "y", "z"]), "cls": np.arange(3)}
    dataset_of([rows]).write_webdataset(tmp_path / "out", max_rows_per_file=2)
    back = paceline.data.read_webdataset(str(tmp_path / "out")).take_all()
    assert [(row["__key__"], row["txt"], row["cls"]) for row in back] == [("a", "x", 0), ("b", "y", 1), ("c", "z", 2)]


def test_what_is_being_written_is_not_read(tmp_path: Path) -> None:
    dataset_of([{"x": [1]}]).write_parquet(tmp_path / "out")
    (tmp_path / "out" / ".writing-1").mkdir()
    (tmp_path / "out" / ".writing-1" / "half.parquet").write_bytes(b"PAR1")
    assert paceline.data.read_parquet(str(tmp_path / "out")).take_all() == [{"x": 1}]
