"""The files of each writer, read by the libraries that others use and by our own readers."""

import base64
import gzip
import io
import json
import tarfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from made_datasets import dataset_of
from PIL import Image

import paceline.data
from paceline.data.block import Block
from paceline.data.sinks.sink import MAX_OPEN_FILES
from paceline.data.write import write_csv, write_images, write_json, write_numpy, write_parquet, write_webdataset

MIXED = {
    "x": np.array([1, 2, 3], np.int64),
    "y": np.array([0.5, np.nan, 1.5], np.float32),
    "text": pa.array(["a", None, 'ü, "quoted"\n']),
    "tags": pa.array([["a"], [], None]),
    "raw": pa.array([b"\x00\xff", b"", None]),
}
PIXELS = np.zeros((1, 4, 4), np.uint8)
TENSORS = {"image": np.arange(24, dtype=np.uint8).reshape(2, 2, 3, 2), "flat": np.arange(6.0).reshape(2, 3)}


def _one(path):
    (file,) = path.iterdir()
    return file


def test_parquet_gives_back_what_was_written(tmp_path):
    write_parquet(dataset_of([MIXED]), tmp_path / "mixed")
    back, expected = pq.read_table(_one(tmp_path / "mixed")), Block(MIXED).to_arrow()
    assert back.cast(expected.schema).schema == expected.schema
    assert repr(back.to_pylist()) == repr(expected.to_pylist())  # by text: nan is not equal to itself
    write_parquet(dataset_of([TENSORS]), tmp_path / "tensors")
    table = pq.read_table(_one(tmp_path / "tensors"))
    assert isinstance(table.schema.field("image").type, pa.FixedShapeTensorType)
    tensors = Block.from_arrow(table).to_numpy()
    for name, values in TENSORS.items():
        assert tensors[name].dtype == values.dtype
        np.testing.assert_array_equal(tensors[name], values)


def test_parquet_arguments_are_those_of_pyarrow(tmp_path):
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


def test_blocks_go_to_one_row_group_unless_their_types_differ_too_much(tmp_path):
    write_parquet(dataset_of([{"x": np.arange(10)} for _ in range(100)]), tmp_path / "small")
    assert pq.ParquetFile(_one(tmp_path / "small")).metadata.num_row_groups == 1
    blocks = [{"x": pa.array([1, 2])}, {"x": pa.array([None, None], pa.null())}, {"x": pa.array([3], pa.int32())}]
    write_parquet(dataset_of(blocks), tmp_path / "similar")
    assert pq.read_table(_one(tmp_path / "similar"))["x"].to_pylist() == [1, 2, None, None, 3]
    blocks = [{"x": pa.array([1])}, {"x": pa.array(["a"])}, {"x": pa.array(["b"]), "y": pa.array([1])}]
    write_parquet(dataset_of(blocks), tmp_path / "different")
    files = sorted((tmp_path / "different").iterdir())
    assert [pq.read_table(file).to_pylist() for file in files] == [[{"x": 1}], [{"x": "a"}], [{"x": "b", "y": 1}]]


def test_partitions_are_directories_that_pyarrow_reads_back(tmp_path):
    rows = {"year": [2024, 2023, 2024, 2023], "kind": pa.array(["a/b", "c d", "a/b", None]), "x": np.arange(4)}
    write_parquet(dataset_of([rows], [rows]), tmp_path / "out", partition_cols=["year", "kind"])
    files = sorted(str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*.parquet"))
    assert files == [
        f"year={place}/part-00000{number}.parquet"
        for place in ("2023/kind=__HIVE_DEFAULT_PARTITION__", "2023/kind=c%20d", "2024/kind=a%2Fb")
        for number in range(2)
    ]
    first = pq.ParquetFile(tmp_path / "out" / files[-2]).read()
    assert first.to_pydict() == {"x": [0, 2]}, "the order of rows is kept"
    back = pa.dataset.dataset(tmp_path / "out", partitioning="hive").to_table().to_pylist()
    expected = [{"x": row["x"], "year": row["year"], "kind": row["kind"]} for row in Block(rows).rows()] * 2
    assert sorted(back, key=repr) == sorted(expected, key=repr)


def test_more_partitions_than_files_may_be_open_lose_no_row(tmp_path):
    num = MAX_OPEN_FILES + 5
    blocks = [{"key": np.arange(num), "x": np.full(num, turn)} for turn in range(2)]
    write_parquet(dataset_of(blocks), tmp_path / "out", partition_cols=["key"])
    back = pa.dataset.dataset(tmp_path / "out", partitioning="hive").to_table().to_pylist()
    assert sorted((row["key"], row["x"]) for row in back) == sorted((k, t) for k in range(num) for t in range(2))


def test_csv_gives_back_what_was_written_with_one_header(tmp_path):
    rows = {name: MIXED[name] for name in ("x", "y", "text")}
    write_csv(dataset_of([rows, rows]), tmp_path / "same")
    frame = pd.read_csv(_one(tmp_path / "same"))
    expected = pd.concat([Block(rows).to_pandas()] * 2, ignore_index=True)
    pd.testing.assert_frame_equal(frame, expected, check_dtype=False)
    blocks = [{"x": [1], "y": ["a"]}, {"y": ["b"], "x": [2.5]}, {"x": ["c"], "y": [None]}]
    write_csv(dataset_of(blocks), tmp_path / "types", quoting_style="needed")
    assert _one(tmp_path / "types").read_text().splitlines() == ['"x","y"', '1,"a"', '2.5,"b"', '"c",']


@pytest.mark.parametrize("pack", [dict, lambda **given: {"write_options": pyarrow.csv.WriteOptions(**given)}])
def test_csv_arguments_are_those_of_pyarrow(tmp_path, pack):
    options = pack(delimiter=";", include_header=False)
    write_csv(dataset_of([{"x": [1, 2], "y": [3, 4]}]), tmp_path / "out", compression="gzip", **options)
    file = _one(tmp_path / "out")
    assert file.name == "part-000000.csv.gz"
    assert gzip.decompress(file.read_bytes()).decode().splitlines() == ["1;3", "2;4"]


def test_json_is_an_object_a_line(tmp_path):
    write_json(dataset_of([MIXED], [{"image": TENSORS["image"]}]), tmp_path / "out")
    first, second = ((tmp_path / "out" / f"part-00000{n}.json").read_text().splitlines() for n in range(2))
    assert list(map(json.loads, first)) == [
        {"x": 1, "y": 0.5, "text": "a", "tags": ["a"], "raw": base64.b64encode(b"\x00\xff").decode()},
        {"x": 2, "y": None, "text": None, "tags": [], "raw": ""},
        {"x": 3, "y": 1.5, "text": 'ü, "quoted"\n', "tags": None, "raw": None},
    ]
    assert [json.loads(line)["image"] for line in second] == TENSORS["image"].tolist()


def test_numpy_takes_text_and_splits_where_shapes_differ(tmp_path):
    write_numpy(dataset_of([{"t": pa.array(["a", "bcd"])}]), tmp_path / "text", column="t")
    assert np.load(_one(tmp_path / "text")).tolist() == ["a", "bcd"]
    write_numpy(dataset_of([{"t": np.zeros((2, 3))}, {"t": np.zeros((1, 4))}]), tmp_path / "shapes", column="t")
    assert [np.load(file).shape for file in sorted((tmp_path / "shapes").iterdir())] == [(2, 3), (1, 4)]


@pytest.mark.parametrize("shape", [(4, 5, 3), (4, 5, 4), (4, 5), (4, 5, 1)])
def test_each_image_is_a_file(tmp_path, shape):
    images = np.random.default_rng(0).integers(0, 256, (3, *shape), np.uint8)
    write_images(dataset_of([{"image": images[:2]}], [{"image": images[2:]}]), tmp_path / "out", "image")
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == [f"part-00000{number}.png" for number in range(3)]
    for file, image in zip(files, images, strict=True):
        with Image.open(file) as read:
            np.testing.assert_array_equal(np.asarray(read), image.squeeze() if shape[-1] == 1 else image)


def test_images_of_different_sizes_and_other_formats(tmp_path):
    images = [np.full((size, size + 1, 3), 100, np.uint8) for size in (8, 9)]
    write_images(dataset_of([{"image": images}]), tmp_path / "out", "image", "jpg")
    for file, size in zip(sorted((tmp_path / "out").iterdir()), (8, 9), strict=True):
        with Image.open(file) as image:
            assert (image.format, image.size) == ("JPEG", (size + 1, size))


def _members(path):
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def test_webdataset_members_are_encoded_by_their_extension(tmp_path):
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


def test_webdataset_shards_are_the_same_every_time_and_the_encoder_is_a_function_or_left_out(tmp_path):
    rows = {"txt": pa.array([f"{n}" for n in range(5)])}
    for name in ("one", "two"):
        write_webdataset(dataset_of([rows]), tmp_path / name, max_rows_per_file=2)
    shards = sorted((tmp_path / "one").iterdir())
    assert [list(_members(shard).values()) for shard in shards] == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    assert list(_members(shards[0])) == ["00000000.txt", "00000001.txt"]
    assert [s.read_bytes() for s in shards] == [s.read_bytes() for s in sorted((tmp_path / "two").iterdir())]
    write_webdataset(dataset_of([{"x": [1]}]), tmp_path / "f", encoder=lambda row: {"bin": bytes([row["x"]])})
    assert _members(_one(tmp_path / "f")) == {"00000000.bin": b"\x01"}
    write_webdataset(dataset_of([{"x": [b"1"], "y": ["2"]}]), tmp_path / "b", encoder=False)
    assert _members(_one(tmp_path / "b")) == {"00000000.x": b"1", "00000000.y": b"2"}


STRANGE = np.empty(1, object)
STRANGE[0] = range(3)


def unread():
    raise AssertionError("a wrong argument is refused before a row is read")


REFUSED = [
    (write_csv, {"y": np.zeros((2, 3))}, {}, "write_csv: column 'y' has .*which CSV cannot hold"),
    (write_csv, {"y": pa.array([[1], [2]])}, {}, "write_csv: column 'y' has .*which CSV cannot hold"),
    (write_csv, {"y": pa.array([{"a": 1}, None])}, {}, "write_csv: column 'y' has .*which CSV cannot hold"),
    (write_csv, {"y": [1]}, {"sep": ";"}, "write_csv.. has no argument 'sep'; it has .*delimiter"),
    (write_csv, {"y": [1]}, {"compression": "zip"}, "zip"),
    (write_json, {"y": STRANGE}, {}, "write_json: column 'y': cannot write a range as JSON"),
    (write_numpy, {"y": pa.array([[1], [1, 2]])}, {"column": "y"}, "write_numpy: column 'y' has"),
    (write_numpy, {"y": pa.array(["a", None])}, {"column": "y"}, "write_numpy: column 'y' has"),
    (write_numpy, {"x": [1]}, {"column": "y"}, "unknown column 'y'; the columns are: 'x'"),
    (write_images, {"y": np.zeros((1, 4, 4))}, {"column": "y"}, r"must be an image .* float64 and shape \(4, 4\)"),
    (write_images, {"y": np.zeros((1, 4), np.uint8)}, {"column": "y"}, r"shape \(4,\)"),
    (write_images, {"y": pa.array(["a"])}, {"column": "y"}, "must be an image"),
    (write_images, {"y": PIXELS}, {"column": "y", "file_format": "docx"}, "file_format must be .*, got 'docx'"),
    (write_webdataset, {"y": [1]}, {}, "cannot encode column 'y', which has a value of type int"),
    (write_webdataset, {"cls": [1]}, {"encoder": False}, "column 'cls'"),
    (write_webdataset, {"cls": [1, 2], "__key__": ["a", "a"]}, {}, "got 'a' twice: they would be read as one row"),
    (write_webdataset, {"cls": [1]}, {"encoder": "json"}, "encoder must be True, False, or a function .*, got 'json'"),
    (paceline.data.write.write_tfrecords, {"image": TENSORS["image"]}, {}, "'image'"),
    (write_parquet, unread, {"mode": "replace"}, "'ignore', 'create' or 'upsert', got 'replace'"),
    (write_parquet, unread, {"min_rows_per_file": 0}, "min_rows_per_file must be a positive integer or None, got 0"),
    (write_parquet, unread, {"min_rows_per_file": 5, "max_rows_per_file": 4}, "at most max_rows_per_file=4, got 5"),
    (write_parquet, unread, {"partition_cols": "x"}, r"must be a list of columns such as \['x'\], got 'x'"),
    (write_parquet, unread, {"partition_cols": ["x", "x"]}, "a list of different columns"),
    (write_parquet, unread, {"concurrency": -1}, "concurrency must be a positive integer or None, got -1"),
    (write_parquet, unread, {"row_group_size": 0}, "row_group_size must be a positive integer or None, got 0"),
    (write_parquet, unread, {"colour": "red"}, "colour"),
    (write_parquet, {"x": [1]}, {"partition_cols": ["x"]}, "must leave a column to write"),
    (write_parquet, {"x": [1]}, {"partition_cols": ["z"]}, "unknown column 'z'; the columns are: 'x'"),
    (write_parquet, TENSORS, {"partition_cols": ["flat"]}, "'flat' has type .* cannot be a directory name"),
]


@pytest.mark.parametrize(("write", "rows", "arguments", "message"), REFUSED)
def test_what_a_format_cannot_hold_is_refused_by_name_and_nothing_is_left(tmp_path, write, rows, arguments, message):
    with pytest.raises((ValueError, TypeError, KeyError), match=message):
        write(dataset_of(rows if callable(rows) else [rows]), tmp_path / "out", **arguments)
    assert list(tmp_path.iterdir()) == []
