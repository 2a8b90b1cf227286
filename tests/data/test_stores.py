"""Readers and writers on object stores and other filesystems: whole objects, all or none, and nothing is lost."""

import os
import pickle
import uuid

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_datasets import column, dataset_of, source_of
from pyarrow.fs import GcsFileSystem, S3FileSystem

from paceline._core.errors import StorageError
from paceline._storage.address import open_store_at
from paceline._storage.retrying_store import RetryingStore
from paceline.data import read_binary_files, read_csv, read_json, read_parquet, read_text
from paceline.data.block import Block
from paceline.data.context import DataContext
from paceline.data.datasource import FilenameProvider
from paceline.data.sources.files import list_files
from paceline.data.write import write_images, write_json, write_parquet
from servers import BUCKET, s3_variables

FILES = {"a.csv": b"n\n1\n2\n", "b.jsonl": b'{"n": 1}\n', "c.txt": b"one\ntwo\n", "_d": b"x"}


def write_files(filesystem, root):
    for number in range(2):
        table = pa.table({"n": [number * 10, number * 10 + 1], "s": ["x", None]})
        with filesystem.open_output_stream(f"{root}/table/year={2023 + number}/{number}.parquet") as stream:
            pq.write_table(table, stream)
    for name, content in FILES.items():
        with filesystem.open_output_stream(f"{root}/files/{name}", compression=None) as stream:
            stream.write(content)


@pytest.fixture(params=["s3", "s3 with options", "s3 of pyarrow", "s3 of fsspec", "gs"])
def opened(request, s3_server, s3fs_filesystem, gcs_server, monkeypatch):
    """From a path below a prefix of its own: the path as a user writes it, the filesystem, and how messages name it."""
    root = f"{BUCKET}/data-{uuid.uuid4().hex[:8]}"
    account = {"access_key": "test", "secret_key": "test", "region": "us-east-1"}
    s3 = S3FileSystem(endpoint_override=s3_server.authority, scheme="http", **account)
    gs = GcsFileSystem(anonymous=True, scheme="http", endpoint_override=gcs_server.authority)
    write_files(gs if request.param == "gs" else s3, root)
    shown = f"gs://{root}" if request.param == "gs" else f"s3://{root}"
    filesystem = {"s3 of pyarrow": s3, "s3 of fsspec": s3fs_filesystem}.get(request.param)
    begin, options = shown, ""
    match request.param:
        case "s3":
            for name, value in s3_variables(s3_server.authority).items():
                monkeypatch.setenv(name, value)
        case "s3 with options":
            begin = f"s3://test:test@{root}"
            options = f"?endpoint_override={s3_server.authority}&scheme=http&region=us-east-1"
        case "s3 of pyarrow":
            begin = root
        case "gs":
            begin, options = f"gs://anonymous@{root}", f"?scheme=http&endpoint_override={gcs_server.authority}"
    return lambda path: (f"{begin}/{path}{options}", filesystem, f"{shown}/{path}")


def test_every_reader_reads_from_every_store(opened):
    path, filesystem, _ = opened("table")
    dataset = read_parquet(path, filesystem=filesystem, filter="n != 1")
    columns = [column(dataset, name) for name in ("n", "s", "year")]
    assert columns == [[0, 10, 11], ["x", "x", None], [2023, 2024, 2024]]
    readers = [
        (read_csv, "files/*.csv", "n", [1, 2]),
        (read_json, "files", "n", [1]),
        (read_text, "files/c.txt", "text", ["one", "two"]),
        (read_binary_files, "files", "bytes", [b"n\n1\n2\n", b'{"n": 1}\n', b"one\ntwo\n"]),
    ]
    for read, where, name, expected in readers:
        path, filesystem, _ = opened(where)
        assert column(read(path, filesystem=filesystem), name) == expected


def test_files_are_named_without_credentials_and_share_a_connection(opened):
    path, filesystem, shown = opened("table/year=2023/0.parquet")
    (file,) = list_files(path, filesystem=filesystem)
    assert str(file) == shown
    assert file.name == "0.parquet"
    assert file.size > 0
    assert pickle.loads(pickle.dumps(file)).fs_handle is pickle.loads(pickle.dumps(file)).fs_handle
    assert list_files([path, path.replace("2023/0.", "2024/1.")], filesystem=filesystem)[1].fs_handle is file.fs_handle
    assert "test:test" not in source_of(read_parquet(path, filesystem=filesystem)).name
    for where in ("nowhere", "table/*.csv", "nowhere/*.csv"):
        path, filesystem, shown = opened(where)
        with pytest.raises(FileNotFoundError) as caught:
            read_parquet(path, filesystem=filesystem)
        assert shown.partition("*")[0].rstrip("/") in str(caught.value)
        assert "test:test" not in str(caught.value)


@pytest.fixture(autouse=True)
def staged(tmp_path, monkeypatch):
    """Where files are staged: nothing may be left there."""
    path = tmp_path / "staged"
    path.mkdir()
    monkeypatch.setattr(DataContext, "_current", DataContext(spill_path=str(path)))
    yield path
    assert os.listdir(path) == []


@pytest.fixture
def place(s3_environment):
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/out"


def _rows(*numbers):
    return {"x": np.array(numbers, np.int64)}


def _read(uri, filesystem=None):
    store = open_store_at(uri, filesystem)
    return {
        entry.key: pq.read_table(pa.BufferReader(store.read(entry.key))).column("x").to_pylist()
        for entry in store.list_entries()
    }


def _fails():
    yield Block(_rows(5))
    raise RuntimeError("broken")


def test_modes_are_those_of_a_disk_and_a_failure_leaves_nothing(place):
    with pytest.raises(RuntimeError, match="broken"):
        write_parquet(dataset_of([_rows(0)], _fails), place)
    write_parquet(dataset_of([]), place)
    assert _read(place) == {}
    write_parquet(dataset_of([_rows(0)], [_rows(1)]), place, mode="error")
    with pytest.raises(FileExistsError, match="mode='append' adds"):
        write_parquet(dataset_of([_rows(9)]), place, mode="error")
    write_parquet(dataset_of([_rows(9)]), place, mode="ignore")
    write_parquet(dataset_of([_rows(2)]), place)
    assert _read(place) == {f"part-00000{n}.parquet": [n] for n in range(3)}
    write_parquet(dataset_of([_rows(9)]), place, mode="overwrite")
    assert _read(place) == {"part-000003.parquet": [9]}  # never over one that is still needed should this fail
    write_parquet(dataset_of([_rows(8)]), place, mode="overwrite")
    assert _read(place) == {"part-000000.parquet": [8]}


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_failing_upload_takes_back_the_others_and_keeps_what_was_there(place, mode, monkeypatch):
    write_parquet(dataset_of([_rows(0)]), place)
    upload = RetryingStore.upload

    def refused(self, source, key, *more):
        if key == "part-000003.parquet":
            raise StorageError("no more")
        return upload(self, source, key, *more)

    with monkeypatch.context() as patch:
        patch.setattr(RetryingStore, "upload", refused)
        with pytest.raises(StorageError, match="no more"):
            write_parquet(dataset_of(*([_rows(n)] for n in range(1, 5))), place, mode=mode)
    assert _read(place) == {"part-000000.parquet": [0]}


def test_partitions_are_prefixes(place):
    rows = {"day": pa.array(["2024-01-01", "a b/c"]), "x": np.arange(2)}
    write_parquet(dataset_of([rows]), place, partition_cols=["day"])
    assert _read(place) == {"day=2024-01-01/part-000000.parquet": [0], "day=a%20b%2Fc/part-000000.parquet": [1]}


class ByUnit(FilenameProvider):
    def get_filename_for_task(self, write_uuid, task_index):
        return f"day-{task_index}"


def test_files_of_a_bucket_have_the_names_of_a_provider(place):
    write_parquet(dataset_of([_rows(0)], [_rows(1)]), place, filename_provider=ByUnit())
    named = {"day-0.parquet": [0], "day-1.parquet": [1]}
    assert _read(place) == named
    with pytest.raises(FileExistsError, match=r"day-0\.parquet"):
        write_parquet(dataset_of([_rows(5)]), place, filename_provider=ByUnit())
    assert _read(place) == named, "nothing was written over"
    write_parquet(dataset_of([_rows(6)]), place, mode="overwrite", filename_provider=ByUnit())
    assert _read(place) == {"day-0.parquet": [6]}


def test_a_filesystem_of_pyarrow_leads_there_too_and_a_bucket_that_is_not_there_is_named(place, s3_environment):
    filesystem = S3FileSystem(endpoint_override=s3_environment.authority, scheme="http", region="us-east-1")
    write_parquet(dataset_of([_rows(1)]), place.removeprefix("s3://"), filesystem=filesystem)
    assert _read(place) == {"part-000000.parquet": [1]}
    with pytest.raises(StorageError, match="nowhere"):
        write_parquet(dataset_of([_rows(1)]), "s3://nowhere/out")


def test_any_filesystem_of_fsspec_will_do():
    memory = fsspec.filesystem("memory")
    root = f"/{uuid.uuid4().hex}"
    try:
        write_json(dataset_of([_rows(1, 2)]), f"{root}/rows", filesystem=memory)
        write_images(dataset_of([{"image": np.zeros((2, 3, 4), np.uint8)}]), f"memory:/{root}/images", "image")
        assert memory.cat(f"{root}/rows/part-000000.json") == b'{"x":1}\n{"x":2}\n'
        assert [path[-15:] for path in sorted(memory.find(f"{root}/images"))] == ["part-000000.png", "part-000001.png"]
    finally:
        memory.rm(root, recursive=True)


def test_what_a_killed_writer_had_staged_is_swept_by_the_next(place, staged, run_script):
    left = (
        "import sys; from pathlib import Path; from paceline.data.sinks import targets; "
        "Path(sys.argv[1], targets.new_staging_name(targets.STORE_PREFIX)).mkdir()"
    )
    run_script(left, str(staged))
    assert len(os.listdir(staged)) == 1
    write_parquet(dataset_of([_rows(1)]), place)
    assert os.listdir(staged) == []
