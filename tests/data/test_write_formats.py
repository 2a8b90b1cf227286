"""What each writer makes of rows, seen by the libraries that others read them with."""

import base64
import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from PIL import Image
from rows_in_units import dataset_of

from paceline.data.block import Block
from paceline.data.sinks.sink import MAX_OPEN_FILES, partitioned
from paceline.data.write import (
    write_csv,
    write_images,
    write_json,
    write_numpy,
    write_parquet,
    write_tfrecords,
    write_webdataset,
)

MIXED = {
    "x": np.array([1, 2, 3], np.int64),
    "y": np.array([0.5, np.nan, 1.5], np.float32),
    "text": pa.array(["a", None, 'ü, "quoted"\n']),
    "tags": pa.array([["a"], [], None]),
    "raw": pa.array([b"\x00\xff", b"", None]),
}
TENSORS = {"image": np.arange(24, dtype=np.uint8).reshape(2, 2, 3, 2), "flat": np.arange(6.0).reshape(2, 3)}


def _one(path: Path) -> Path:
    (file,) = path.iterdir()
    return file


# Parquet


def test_parquet_gives_back_what_was_written(tmp_path: Path) -> None:
    write_parquet(dataset_of([MIXED]), tmp_path / "out")
    back, expected = pq.read_table(_one(tmp_path / "out")), Block(MIXED).to_arrow()
    assert back.cast(expected.schema).schema == expected.schema
    assert repr(back.to_pylist()) == repr(expected.to_pylist())  # by text: nan is not equal to itself


def test_parquet_gives_tensors_back_as_tensors(tmp_path: Path) -> None:
    write_parquet(dataset_of([TENSORS]), tmp_path / "out")
    table = pq.read_table(_one(tmp_path / "out"))
    assert isinstance(table.schema.field("image").type, pa.FixedShapeTensorType)
    back = Block.from_arrow(table).to_numpy()
    for name, values in TENSORS.items():
        assert back[name].dtype == values.dtype
        np.testing.assert_array_equal(back[name], values)


def test_parquet_arguments_are_those_of_pyarrow(tmp_path: Path) -> None:
    write_parquet(
        dataset_of([{"x": np.zeros(1000)}]),
        tmp_path / "out",
        compression="zstd",
        row_group_size=300,
        arrow_parquet_args_fn=lambda: {"compression": "none", "use_dictionary": False},
    )
    metadata = pq.ParquetFile(_one(tmp_path / "out")).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [300, 300, 300, 100]
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert "RLE_DICTIONARY" not in metadata.row_group(0).column(0).encodings


def test_small_blocks_do_not_make_small_row_groups(tmp_path: Path) -> None:
    write_parquet(dataset_of([{"x": np.arange(10)} for _ in range(100)]), tmp_path / "out")
    assert pq.ParquetFile(_one(tmp_path / "out")).metadata.num_row_groups == 1


def test_blocks_of_a_unit_may_have_types_that_can_be_made_one(tmp_path: Path) -> None:
    blocks = [{"x": pa.array([1, 2])}, {"x": pa.array([None, None], pa.null())}, {"x": pa.array([3], pa.int32())}]
    write_parquet(dataset_of(blocks), tmp_path / "out")
    assert pq.read_table(_one(tmp_path / "out"))["x"].to_pylist() == [1, 2, None, None, 3]


def test_blocks_whose_types_cannot_be_made_one_go_to_different_files(tmp_path: Path) -> None:
    blocks = [{"x": pa.array([1])}, {"x": pa.array(["a"])}, {"x": pa.array(["b"]), "y": pa.array([1])}]
    write_parquet(dataset_of(blocks), tmp_path / "out")
    files = sorted((tmp_path / "out").iterdir())
    assert [pq.read_table(file).to_pylist() for file in files] == [[{"x": 1}], [{"x": "a"}], [{"x": "b", "y": 1}]]


# Partitions


def test_partitions_are_directories_that_pyarrow_reads_back(tmp_path: Path) -> None:
    rows = {
        "year": np.array([2024, 2023, 2024, 2023], np.int64),
        "kind": pa.array(["a/b", "c d", "a/b", None]),
        "x": np.arange(4),
    }
    write_parquet(dataset_of([rows], [rows]), tmp_path / "out", partition_cols=["year", "kind"])
    files = sorted(str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*.parquet"))
    assert files == [
        f"year={place}/part-00000{number}.parquet"
        for place in ("2023/kind=__HIVE_DEFAULT_PARTITION__", "2023/kind=c%20d", "2024/kind=a%2Fb")
        for number in range(2)
    ]
    back = pa.dataset.dataset(tmp_path / "out", partitioning="hive").to_table().to_pylist()
    expected = [{"x": row["x"], "year": row["year"], "kind": row["kind"]} for row in Block(rows).rows()] * 2
    assert sorted(back, key=repr) == sorted(expected, key=repr)


def test_more_partitions_than_files_may_be_open_lose_no_row(tmp_path: Path) -> None:
    num = MAX_OPEN_FILES + 5
    blocks = [{"key": np.arange(num), "x": np.full(num, turn)} for turn in range(2)]
    write_parquet(dataset_of(blocks), tmp_path / "out", partition_cols=["key"])
    back = pa.dataset.dataset(tmp_path / "out", partitioning="hive").to_table().to_pylist()
    assert sorted((row["key"], row["x"]) for row in back) == sorted((k, t) for k in range(num) for t in range(2))


def test_partitions_keep_the_order_of_rows_in_each() -> None:
    keys = np.array([3, 1, 3, 2, 1, 3])
    parts = dict(partitioned(Block({"key": keys, "x": np.arange(6)}), ("key",)))
    assert {name: part.to_numpy()["x"].tolist() for name, part in parts.items()} == {
        "key=3": [0, 2, 5],
        "key=1": [1, 4],
        "key=2": [3],
    }
    assert list(parts) == ["key=3", "key=1", "key=2"]


@pytest.mark.parametrize(
    ("rows", "names", "said"),
    [
        ({"x": [1]}, ["x"], "nothing is left to be written"),
        ({"x": [1]}, ["z"], "no column 'z'"),
        ({"x": np.zeros((2, 3)), "y": [1, 2]}, ["x"], "'x' is of type .* makes no name of a directory"),
    ],
)
def test_a_partition_that_cannot_be_made_is_named(tmp_path: Path, rows: Any, names: list[str], said: str) -> None:
    with pytest.raises((ValueError, KeyError), match=said):
        write_parquet(dataset_of([rows]), tmp_path / "out", partition_cols=names)
    assert list(tmp_path.iterdir()) == []


# CSV


def test_csv_gives_back_what_was_written(tmp_path: Path) -> None:
    rows = {name: MIXED[name] for name in ("x", "y", "text")}
    write_csv(dataset_of([rows, rows]), tmp_path / "out")
    frame = pd.read_csv(_one(tmp_path / "out"))
    expected = pd.concat([Block(rows).to_pandas()] * 2, ignore_index=True)
    pd.testing.assert_frame_equal(frame, expected, check_dtype=False)


def test_csv_has_one_header_though_types_change(tmp_path: Path) -> None:
    blocks = [{"x": [1], "y": ["a"]}, {"y": ["b"], "x": [2.5]}, {"x": ["c"], "y": [None]}]
    write_csv(dataset_of(blocks), tmp_path / "out", quoting_style="needed")
    assert _one(tmp_path / "out").read_text().splitlines() == ['"x","y"', '1,"a"', '2.5,"b"', '"c",']


@pytest.mark.parametrize(
    "arguments",
    [
        {"delimiter": ";", "include_header": False},
        {"write_options": pyarrow.csv.WriteOptions(delimiter=";", include_header=False)},
    ],
)
def test_csv_arguments_are_those_of_pyarrow(tmp_path: Path, arguments: dict[str, Any]) -> None:
    write_csv(dataset_of([{"x": [1, 2], "y": [3, 4]}]), tmp_path / "out", compression="gzip", **arguments)
    file = _one(tmp_path / "out")
    assert file.name == "part-000000.csv.gz"
    assert gzip.decompress(file.read_bytes()).decode().splitlines() == ["1;3", "2;4"]


@pytest.mark.parametrize("values", [np.zeros((2, 3)), pa.array([[1], [2]]), pa.array([{"a": 1}, None])])
def test_csv_refuses_what_has_no_place_in_it(tmp_path: Path, values: Any) -> None:
    with pytest.raises(ValueError, match=r"write_csv: the column 'y' has .*no place in a CSV file"):
        write_csv(dataset_of([{"x": [1, 2], "y": values}]), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("arguments", "said"), [({"sep": ";"}, "no argument 'sep'"), ({"compression": "zip"}, "zip")])
def test_csv_arguments_that_are_not_known_are_named(tmp_path: Path, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        write_csv(dataset_of([{"x": [1]}]), tmp_path / "out", **arguments)


# JSON


def test_json_is_an_object_a_line(tmp_path: Path) -> None:
    write_json(dataset_of([MIXED], [{"image": TENSORS["image"]}]), tmp_path / "out")
    first, second = ((tmp_path / "out" / f"part-00000{n}.json").read_text().splitlines() for n in range(2))
    assert list(map(json.loads, first)) == [
        {"x": 1, "y": 0.5, "text": "a", "tags": ["a"], "raw": base64.b64encode(b"\x00\xff").decode()},
        {"x": 2, "y": None, "text": None, "tags": [], "raw": ""},
        {"x": 3, "y": 1.5, "text": 'ü, "quoted"\n', "tags": None, "raw": None},
    ]
    assert [json.loads(line)["image"] for line in second] == TENSORS["image"].tolist()


def test_json_can_be_compressed(tmp_path: Path) -> None:
    write_json(dataset_of([{"x": [1, 2]}]), tmp_path / "out", compression="gzip")
    assert gzip.decompress(_one(tmp_path / "out").read_bytes()) == b'{"x":1}\n{"x":2}\n'


def test_json_names_the_column_that_it_has_no_form_for(tmp_path: Path) -> None:
    strange = np.empty(1, object)
    strange[0] = range(3)
    with pytest.raises(TypeError, match="write_json: the column 'y': JSON has no form for a range"):
        write_json(dataset_of([{"x": [1], "y": strange}]), tmp_path / "out")


# NumPy


def test_numpy_gives_back_what_was_written(tmp_path: Path) -> None:
    image = TENSORS["image"]
    write_numpy(dataset_of([{"image": image}, {"image": image}]), tmp_path / "out", column="image")
    back = np.load(_one(tmp_path / "out"))
    assert back.dtype == np.uint8
    np.testing.assert_array_equal(back, np.concatenate([image, image]))


def test_numpy_takes_text_and_splits_where_shapes_differ(tmp_path: Path) -> None:
    write_numpy(dataset_of([{"t": pa.array(["a", "bcd"])}]), tmp_path / "text", column="t")
    assert np.load(_one(tmp_path / "text")).tolist() == ["a", "bcd"]
    write_numpy(dataset_of([{"t": np.zeros((2, 3))}, {"t": np.zeros((1, 4))}]), tmp_path / "shapes", column="t")
    assert [np.load(file).shape for file in sorted((tmp_path / "shapes").iterdir())] == [(2, 3), (1, 4)]


@pytest.mark.parametrize("values", [pa.array([[1], [1, 2]]), pa.array(["a", None])])
def test_numpy_refuses_what_makes_no_array(tmp_path: Path, values: Any) -> None:
    with pytest.raises(ValueError, match="write_numpy: the column 't' has"):
        write_numpy(dataset_of([{"t": values}]), tmp_path / "out", column="t")


# Images


def _seen(file: Path) -> tuple[str | None, tuple[int, int]]:
    with Image.open(file) as image:
        return image.format, image.size


@pytest.mark.parametrize("shape", [(4, 5, 3), (4, 5, 4), (4, 5), (4, 5, 1)])
def test_each_image_is_a_file(tmp_path: Path, shape: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, *shape), np.uint8)
    write_images(dataset_of([{"image": images[:2]}], [{"image": images[2:]}]), tmp_path / "out", "image")
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == [f"part-00000{number}.png" for number in range(3)]
    for file, image in zip(files, images, strict=True):
        with Image.open(file) as read:
            np.testing.assert_array_equal(np.asarray(read), image.squeeze() if shape[-1] == 1 else image)


def test_images_of_different_sizes_and_other_formats(tmp_path: Path) -> None:
    images = [np.full((size, size + 1, 3), 100, np.uint8) for size in (8, 9)]
    write_images(dataset_of([{"image": images}]), tmp_path / "out", "image", "jpg")
    files = sorted((tmp_path / "out").iterdir())
    assert [_seen(file) for file in files] == [("JPEG", (9, 8)), ("JPEG", (10, 9))]


@pytest.mark.parametrize(
    ("values", "file_format", "said"),
    [
        (np.zeros((1, 4, 4)), "png", r"float64 and shape \(4, 4\), which is no image"),
        (np.zeros((1, 4), np.uint8), "png", r"shape \(4,\)"),
        (pa.array(["a"]), "png", "no image"),
        (np.zeros((1, 4, 4), np.uint8), "docx", "file_format='docx' is not one that Pillow writes"),
    ],
)
def test_what_is_no_image_is_refused(tmp_path: Path, values: Any, file_format: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        write_images(dataset_of([{"image": values}]), tmp_path / "out", "image", file_format)
    assert list(tmp_path.iterdir()) == []


# WebDataset


def _members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def test_webdataset_members_are_encoded_by_their_extension(tmp_path: Path) -> None:
    rows = {
        "__key__": pa.array(["a/1", "a/2"]),
        "__url__": pa.array(["x", "x"]),
        "txt": pa.array(["hü", None]),
        "cls": np.array([3, 4]),
        "json": pa.array([{"k": [1]}, {"k": []}]),
        "vector.npy": np.arange(4.0).reshape(2, 2),
        "png": np.zeros((2, 4, 5, 3), np.uint8),
        "jpg": pa.array([b"raw", b"bytes"]),
    }
    write_webdataset(dataset_of([rows]), tmp_path / "out")
    found = _members(_one(tmp_path / "out"))
    assert list(found)[:3] == ["a/1.txt", "a/1.cls", "a/1.json"]
    assert "a/2.txt" not in found
    assert not [name for name in found if "url" in name or "key" in name]
    assert (found["a/1.txt"], found["a/2.cls"], found["a/2.jpg"]) == ("hü".encode(), b"4", b"bytes")
    assert json.loads(found["a/1.json"]) == {"k": [1]}
    assert np.load(io.BytesIO(found["a/2.vector.npy"])).tolist() == [2.0, 3.0]
    assert Image.open(io.BytesIO(found["a/1.png"])).size == (5, 4)


def test_webdataset_shards_have_so_many_rows_and_are_the_same_every_time(tmp_path: Path) -> None:
    rows = {"txt": pa.array([f"{n}" for n in range(5)])}
    for name in ("one", "two"):
        write_webdataset(dataset_of([rows]), tmp_path / name, max_rows_per_file=2)
    shards = sorted((tmp_path / "one").iterdir())
    assert [list(_members(shard).values()) for shard in shards] == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    assert list(_members(shards[0])) == ["00000000.txt", "00000001.txt"]
    assert [s.read_bytes() for s in shards] == [s.read_bytes() for s in sorted((tmp_path / "two").iterdir())]


def test_webdataset_takes_a_function_or_bytes(tmp_path: Path) -> None:
    write_webdataset(dataset_of([{"x": [1]}]), tmp_path / "f", encoder=lambda row: {"bin": bytes([row["x"]])})
    assert _members(_one(tmp_path / "f")) == {"00000000.bin": b"\x01"}
    write_webdataset(dataset_of([{"x": [b"1"], "y": ["2"]}]), tmp_path / "b", encoder=False)
    assert _members(_one(tmp_path / "b")) == {"00000000.x": b"1", "00000000.y": b"2"}


@pytest.mark.parametrize(
    ("rows", "encoder", "said"),
    [
        ({"x": [1]}, True, "the column 'x' has a value of type int, and how to encode it does not follow"),
        ({"cls": [1]}, False, "the column 'cls'"),
        ({"cls": [1, 2], "__key__": ["a", "a"]}, True, "would be read as one"),
        ({"cls": [1]}, "json", "encoder='json' must be True, False, or a function"),
    ],
)
def test_webdataset_refuses_what_it_cannot_encode(tmp_path: Path, rows: Any, encoder: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        write_webdataset(dataset_of([rows]), tmp_path / "out", encoder=encoder)
    assert list(tmp_path.iterdir()) == []


# TFRecord


def test_tfrecords_give_back_what_was_written(tmp_path: Path) -> None:
    from paceline.data.tfexample import decoded
    from paceline.data.tfrecord import records

    rows = {"x": np.array([1, -2]), "v": np.array([[0.5, 1], [2, 3]], np.float32), "t": pa.array(["a", None])}
    write_tfrecords(dataset_of([rows], [rows]), tmp_path / "out")
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == ["part-000000.tfrecords", "part-000001.tfrecords"]
    with files[1].open("rb") as file:
        first, second = map(decoded, records(file))
    assert {name: list(values) for name, values in first.items()} == {"x": [1], "v": [0.5, 1.0], "t": [b"a"]}
    assert {name: list(values) for name, values in second.items()} == {"x": [-2], "v": [2.0, 3.0]}


def test_tfrecords_name_the_column_that_has_no_place_there(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'image'"):
        write_tfrecords(dataset_of([{"image": TENSORS["image"]}]), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
