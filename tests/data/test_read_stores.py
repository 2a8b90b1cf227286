"""Readers on object stores: real servers, with and without addresses of their own."""

import pickle
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import GcsFileSystem, S3FileSystem
from units_read import column, rows_of, source_of

from paceline.data import read_binary_files, read_csv, read_json, read_parquet, read_text
from paceline.data.sources.files import list_files
from servers import BUCKET, Server, s3_variables

Opened = Callable[[str], tuple[str, Any, str]]
"""From a path below a prefix of its own: the path as a user writes it, the filesystem, and how messages name it."""
FILES = {"a.csv": b"n\n1\n2\n", "b.jsonl": b'{"n": 1}\n', "c.txt": b"one\ntwo\n", "_d": b"x"}


def write_files(filesystem: Any, root: str) -> None:
    for number in range(2):
        table = pa.table({"n": [number * 10, number * 10 + 1], "s": ["x", None]})
        with filesystem.open_output_stream(f"{root}/table/year={2023 + number}/{number}.parquet") as stream:
            pq.write_table(table, stream)
    for name, content in FILES.items():
        with filesystem.open_output_stream(f"{root}/files/{name}", compression=None) as stream:
            stream.write(content)


@pytest.fixture(params=["s3", "s3 with options", "s3 of pyarrow", "s3 of fsspec", "gs"])
def opened(
    request: pytest.FixtureRequest,
    s3_server: Server,
    s3fs_filesystem: Any,
    gcs_server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> Opened:
    root = f"{BUCKET}/data-{uuid.uuid4().hex[:8]}"
    s3 = S3FileSystem(
        access_key="test",
        secret_key="test",
        endpoint_override=s3_server.authority,
        scheme="http",
        region="us-east-1",
    )
    gs = GcsFileSystem(anonymous=True, scheme="http", endpoint_override=gcs_server.authority)
    write_files(gs if request.param == "gs" else s3, root)
    shown = f"gs://{root}" if request.param == "gs" else f"s3://{root}"
    filesystem: Any = {"s3 of pyarrow": s3, "s3 of fsspec": s3fs_filesystem}.get(request.param)
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


def test_every_reader_reads_from_every_store(opened: Opened) -> None:
    path, filesystem, _ = opened("table")
    dataset = read_parquet(path, filesystem=filesystem, filter="n != 1")
    assert rows_of(dataset) == [
        {"n": 0, "s": "x", "year": 2023},
        {"n": 10, "s": "x", "year": 2024},
        {"n": 11, "s": None, "year": 2024},
    ]
    readers: list[tuple[Any, str, str, list[Any]]] = [
        (read_csv, "files/*.csv", "n", [1, 2]),
        (read_json, "files", "n", [1]),
        (read_text, "files/c.txt", "text", ["one", "two"]),
        (read_binary_files, "files", "bytes", [b"n\n1\n2\n", b'{"n": 1}\n', b"one\ntwo\n"]),
    ]
    for read, where, name, expected in readers:
        path, filesystem, _ = opened(where)
        assert column(read(path, filesystem=filesystem), name) == expected


def test_files_are_named_without_credentials_and_share_a_connection(opened: Opened) -> None:
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
