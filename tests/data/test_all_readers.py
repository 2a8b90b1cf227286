"""What all readers have in common: rows in the order of files, with their partitions and paths; a file that cannot be
read is named, and a wrong argument is refused when the reader is called."""

import gzip
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from made_datasets import block, save_array, save_image, write_tar

from paceline.data import col
from paceline.data.block import Block
from paceline.data.expressions import random
from paceline.data.read import (
    read_audio,
    read_binary_files,
    read_csv,
    read_images,
    read_json,
    read_numpy,
    read_parquet,
    read_text,
    read_tfrecords,
    read_webdataset,
)
from paceline.data.sources import text
from paceline.data.sources.tf_examples import encode_examples
from paceline.data.sources.tfrecords import frame_record


def save_archive(**arrays):
    np.savez(file := io.BytesIO(), **arrays)
    return file.getvalue()


def save_table(**columns):
    pq.write_table(pa.table(columns), file := pa.BufferOutputStream())
    return file.getvalue().to_pybytes()


def write_records(column):
    return b"".join(map(frame_record, encode_examples(Block({"x": column}))))


def flip(data, byte):
    return data[:byte] + bytes([data[byte] ^ 0xFF]) + data[byte + 1 :]


LINES = b"".join(json.dumps({"n": number}).encode() + b"\n" for number in range(700))
PACKED = gzip.compress(LINES)
ARRAY = save_array(np.arange(100.0))
RECORDS = write_records(np.arange(5000))
TAR = write_tar(*((f"s{number}.txt", b"x" * 400) for number in range(3)))
PACKED_TAR = write_tar(("a.bin", np.random.default_rng(0).bytes(20000)), mode="w:gz")
TABLE = save_table(n=range(100), x=range(100), s=["x"] * 100)
PNG = save_image(np.arange(144, dtype=np.uint8).reshape(8, 6, 3))
JPEG = save_image(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8), "JPEG")

READERS = {
    read_binary_files: ("bin", lambda n: b"%d" % n, "bytes", lambda n: b"%d" % n),
    read_csv: ("csv", lambda n: b"n,x\n%d,a\n" % n, "n", int),
    read_images: ("png", lambda n: save_image(np.full((2, 2), n, np.uint8)), "image", lambda n: [[n, n]] * 2),
    read_json: ("json", lambda n: b'{"n": %d}' % n, "n", int),
    read_numpy: ("npy", lambda n: save_array(np.array([n])), "data", int),
    read_parquet: ("parquet", lambda n: save_table(n=[n], x=[0], s=["x"], k=["in the file"]), "n", int),
    read_text: ("txt", lambda n: b"%d\n" % n, "text", str),
    read_tfrecords: ("tfrecord", lambda n: write_records([n]), "x", int),
    read_webdataset: ("tar", lambda n: write_tar(("s.cls", b"%d" % n)), "cls", int),
}
"""The suffix and the content of a file with a number, and the column with what is read of it."""


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_rows_come_in_the_order_of_the_files_with_their_partitions_and_paths(tmp_path, read):
    suffix, write, column, value = READERS[read]
    paths = [tmp_path / f"{name}.{suffix}" for name in ("k=7/a", "k=7/b", "k=8/a")]
    for number, path in [*enumerate(paths)][::-1]:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(write(number))
    dataset = read(tmp_path, partitioning="hive", include_paths=True)
    found = block(dataset)
    assert [np.asarray(row[column]).tolist() for row in found.rows()] == [value(number) for number in range(3)]
    assert [(row["k"], row["path"]) for row in found.rows()] == [*zip((7, 7, 8), map(str, paths), strict=True)]
    schema = dataset._plan.source.schema()
    assert schema is None or (schema.names, schema.types[-2:]) == (list(found.columns), [pa.int64(), pa.string()])
    projected = dataset._plan.source.project_columns(["k", column])
    if projected is not None:
        chosen = Block.concat(block for unit in projected.units() for block in unit.read())
        rows = [{name: row[name] for name in row if name not in ("__url__", "__key__")} for row in chosen.rows()]
        assert rows == [{name: row[name] for name in ("k", column)} for row in found.rows()]
    plain = block(read(tmp_path, partitioning=None))
    assert "path" not in plain.columns
    assert plain.columns["k"].to_pylist() == ["in the file"] * 3 if read is read_parquet else "k" not in plain.columns


KINDS = {
    read_audio: " as audio: ",
    read_binary_files: "",
    read_images: "",
    read_json: " as JSON: ",
    read_numpy: " as a NumPy array: ",
    read_parquet: " as Parquet: ",
    read_text: " as utf-8 text: ",
    read_tfrecords: " as TFRecords of tf.train.Example: ",
    read_webdataset: " as a tar file of samples: ",
}
RECORD_FILE, TAR_FILE = (read_tfrecords, "a.tfrecord"), (read_webdataset, "a.tar")
BROKEN = [
    *((read_audio, "a.wav", content, "") for content in (b"", b"RIFFbut not for long")),
    *((read_images, "a.png", content, "") for content in (b"no image", PNG[:-40], PNG[:20], JPEG[: len(JPEG) // 2])),
    (read_binary_files, "a.gz", gzip.compress(b"content")[:-9], ""),
    (read_json, "a.json", b'{"n": 1}\n{"n": \n', "row 2: Expecting value"),
    (read_json, "a.json", b'{"n": 1}\n[1]\n', "row 2: it is a list, not an object"),
    (read_json, "a.json", b'[{"n": 1}, {"n"', "Expecting ':' delimiter"),
    (read_json, "a.json", b'{"n": 1, \n "m": ', "Expecting value"),
    (read_json, "a.json", b"\x00\xff garbage", "utf-8|Expecting value"),
    (read_json, "a.jsonl.gz", PACKED[: len(PACKED) // 2], ""),
    (read_json, "a.jsonl", LINES + b"{oops}\n" + LINES, "row 701: "),
    (read_json, "a.jsonl", LINES + b'{"n": "text"}\n', r"after row \d+.*explicit_schema"),
    (read_json, "a.jsonl", LINES + b'{"n": 1, "b": 2}\n', r"after row \d+.*explicit_schema"),
    (read_numpy, "a.npy", b"", ""),
    (read_numpy, "a.npy", b"no array at all, but longer than a header would be", ""),
    (read_numpy, "a.npy", ARRAY[:20], ""),
    (read_numpy, "a.npy", ARRAY[:-10], "it is truncated: it has 918 of 928 bytes"),
    (read_numpy, "a.npy", save_array(np.array([{"a": 1}, None], dtype=object)), "Python objects"),
    (read_numpy, "a.npy", save_array(np.float64(3)), "single value"),
    (read_numpy, "a.npz", save_archive(x=np.arange(100))[:-40], ""),
    (read_numpy, "a.npz", save_archive(x=np.arange(3), y=np.arange(2)), "3 in 'x', 2 in 'y'"),
    (read_parquet, "a.parquet", b"", ""),
    (read_parquet, "a.parquet", b"garbage" * 100, ""),
    (read_parquet, "a.parquet", TABLE[: len(TABLE) // 2], ""),
    (read_parquet, "a.parquet", TABLE[:4] + b"\xa5" * 100 + TABLE[104:], ""),
    (read_text, "a.txt", b"fine\n\xff\xfe\n", ""),
    (read_text, "a.txt", b"cut in a sign \xc3", ""),
    (read_text, "a.txt.gz", b"not packed", ""),
    (read_text, "a.txt.gz", PACKED[: len(PACKED) // 2], ""),
    (*RECORD_FILE, RECORDS[:-3], r"record 4999 \(byte \d+\): the file is cut off: it has \d+ of \d+ bytes"),
    (*RECORD_FILE, flip(RECORDS, -4), r"record 4999 \(byte \d+\): the checksum of its data"),
    (*RECORD_FILE, flip(RECORDS, 0), r"record 0 \(byte 0\): the checksum of its length"),
    (*RECORD_FILE, gzip.compress(RECORDS), r"record 0 \(byte 0\): the checksum of its length .*compressed"),
    (*RECORD_FILE, RECORDS + frame_record(b"\xff\xff"), "record 5000: byte 0: a number does not end"),
    (*RECORD_FILE, RECORDS + write_records([0.5]), "record 5000: feature 'x' is a float list, and a int"),
    (*TAR_FILE, b"", "it has no end marker: it is empty"),
    (*TAR_FILE, TAR[:700], "(unexpected end of data|ends within)"),
    (*TAR_FILE, TAR[:1024], r"it has no end marker: .*truncated .*\(after 's0.txt'\)"),
    (*TAR_FILE, TAR[:1324], r"it is truncated within the header of a file \(after 's0.txt'\)"),
    (*TAR_FILE, flip(TAR, 1034), r"the header of a file is damaged: .*\(after 's0.txt'\)"),
    (read_webdataset, "a.tgz", PACKED_TAR[:-5000], ""),
    (*TAR_FILE, write_tar(("s.cls", b"seven")), r"sample 's': cannot decode its \.cls"),
    (*TAR_FILE, write_tar(("s.png", b"no image")), r"sample 's': cannot decode its \.png: .*format"),
    (*TAR_FILE, write_tar(("s.json", b"{")), r"sample 's': cannot decode its \.json"),
    (*TAR_FILE, write_tar(("s.npy", save_array(np.array([None]), allow_pickle=True))), r"'s': cannot decode its \.npy"),
    (*TAR_FILE, write_tar(("s.txt", b"x"), ("s.txt", b"y")), r"sample 's' has two \.txt files"),
]


@pytest.mark.parametrize(
    ("read", "name", "content", "message"), BROKEN, ids=[f"{read.__name__}: {message}" for read, *_, message in BROKEN]
)
def test_a_broken_file_is_named_with_what_is_wrong(tmp_path, read, name, content, message, monkeypatch):
    monkeypatch.setattr(text, "JSON_PIECE_BYTES", 100)
    (tmp_path / name).write_bytes(content)
    with pytest.raises((ValueError, OSError), match=rf"(?s)cannot read \S*{name}{KINDS[read]}.*({message})"):
        block(read(tmp_path))


WRONG = [
    (read_csv, {"parse_options": ";"}, r"parse_options must be a pyarrow\.csv\.ParseOptions.*, got ';'"),
    (read_csv, {"delimiter": ";"}, r"read_csv\(\) has no argument 'delimiter'; it has .*parse_options"),
    (read_images, {"size": (0, 5)}, r"size must be .* got \(0, 5\)"),
    (read_images, {"mode": "rgb"}, "mode must be .* got 'rgb'"),
    (read_images, {"partitioning": "dir"}, "partitioning must be 'hive' or None, got 'dir'"),
    (read_json, {"lines": "yes"}, "lines must be True or False, got 'yes'"),
    (read_json, {"orient": "records"}, r"read_json\(\) has no argument 'orient'"),
    (read_parquet, {"colums": ["x"]}, r"read_parquet\(\) has no argument 'colums'; it has paths, .*columns"),
    (read_parquet, {"columns": ["x", "z"]}, "columns: unknown column 'z' of .*; the columns are 'n', 'x'"),
    (read_parquet, {"columns": "x"}, "columns must be a list of names, got 'x'"),
    (read_parquet, {"columns": ["x", "x"]}, "columns must be unique"),
    (read_parquet, {"filter": "nowhere > 3"}, "filter: unknown column 'nowhere'"),
    (read_parquet, {"filter": col("s") > 3}, "cannot apply filter .* to the columns: "),
    (read_parquet, {"filter": pc.field("nowhere") > 3}, "cannot apply filter .* to the columns: .*nowhere"),
    (read_parquet, {"filter": lambda row: True}, "filter must be an expression"),
    (read_parquet, {"filter": random() < 0.5}, "filter must depend on columns only"),
    (read_parquet, {"shuffle": "rows"}, "shuffle must be 'files', a FileShuffleConfig or None, got 'rows'"),
    (read_parquet, {"override_num_blocks": 0}, "override_num_blocks must be a positive integer or None, got 0"),
    (read_parquet, {"concurrency": 1.5}, "concurrency must be a positive integer or None, got 1.5"),
    (read_parquet, {"include_paths": 1}, "include_paths must be True or False, got 1"),
    (read_text, {"encoding": "klingon"}, "encoding must be .* got 'klingon'"),
    (read_text, {"drop_empty_lines": 0}, "drop_empty_lines must be True or False, got 0"),
    (read_tfrecords, {"compression": "gz"}, "compression must be 'GZIP', 'ZLIB' or None, got 'gz'"),
    (read_tfrecords, {"tf_schema": {"x": "int"}}, r"tf_schema\['x'\] must be an Arrow type"),
    (read_tfrecords, {"tf_schema": 5}, "tf_schema must be a dict"),
    (read_webdataset, {"suffixes": "jpg"}, "suffixes must be a list"),
    (read_webdataset, {"fileselect": 5}, "fileselect must be a list"),
    (read_webdataset, {"decoder": 5}, "decoder must be a function"),
    (read_webdataset, {"filerename": "x"}, "filerename must be a function"),
]


@pytest.mark.parametrize(("read", "arguments", "message"), WRONG)
def test_a_wrong_argument_is_refused_at_once(tmp_path, read, arguments, message):
    suffix, write, *_ = READERS[read]
    (tmp_path / f"a.{suffix}").write_bytes(write(1))
    with pytest.raises((TypeError, ValueError), match=message):
        read(tmp_path, **arguments)
