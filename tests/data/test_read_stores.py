"""Readers on object stores: real servers, with and without addresses of their own."""

import pickle
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from units_read import column, rows_of, source_of

from paceline.data import read_binary_files, read_csv, read_json, read_parquet, read_text
from paceline.data.files import listed
from servers import BUCKET, Server

# Named here because a server that is started in the middle of a test counts as left behind by it.
pytestmark = pytest.mark.usefixtures("s3_server", "s3fs_filesystem", "gcs_server")

Opened = Callable[[str], tuple[str, Any, str]]
"""From a path below a prefix of its own: the path as a user writes it, the filesystem, and how messages name it."""


@pytest.fixture
def prefix() -> str:
    return f"data-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def s3fs_filesystem(s3_server: Server) -> Iterator[Any]:
    import s3fs

    filesystem = s3fs.S3FileSystem(
        key="test",
        secret="test",
        endpoint_url=f"http://{s3_server.authority}",
        client_kwargs={"region_name": "us-east-1"},
        skip_instance_cache=True,
    )
    filesystem.connect()
    yield filesystem
    s3fs.S3FileSystem.close_session(filesystem.loop, filesystem._s3)


def _arrow_s3(server: Server) -> Any:
    from pyarrow.fs import S3FileSystem

    return S3FileSystem(
        access_key="test", secret_key="test", endpoint_override=server.authority, scheme="http", region="us-east-1"
    )


@pytest.fixture
def s3(s3_environment: Server, prefix: str) -> Opened:
    return lambda path: (f"s3://{BUCKET}/{prefix}/{path}", None, f"s3://{BUCKET}/{prefix}/{path}")


@pytest.fixture
def s3_with_options(s3_server: Server, prefix: str) -> Opened:
    options = f"endpoint_override={s3_server.authority}&scheme=http&region=us-east-1"
    return lambda path: (
        f"s3://test:test@{BUCKET}/{prefix}/{path}?{options}",
        None,
        f"s3://{BUCKET}/{prefix}/{path}",
    )


@pytest.fixture
def s3_of_pyarrow(s3_server: Server, prefix: str) -> Opened:
    filesystem = _arrow_s3(s3_server)
    return lambda path: (f"{BUCKET}/{prefix}/{path}", filesystem, f"s3://{BUCKET}/{prefix}/{path}")


@pytest.fixture
def s3_of_fsspec(s3fs_filesystem: Any, prefix: str) -> Opened:
    return lambda path: (f"s3://{BUCKET}/{prefix}/{path}", s3fs_filesystem, f"s3://{BUCKET}/{prefix}/{path}")


@pytest.fixture
def gs(gcs_server: Server, prefix: str) -> Opened:
    options = f"scheme=http&endpoint_override={gcs_server.authority}"
    return lambda path: (
        f"gs://anonymous@{BUCKET}/{prefix}/{path}?{options}",
        None,
        f"gs://{BUCKET}/{prefix}/{path}",
    )


STORES = ["s3", "s3_with_options", "s3_of_pyarrow", "s3_of_fsspec", "gs"]


@pytest.fixture(params=STORES)
def opened(request: pytest.FixtureRequest, prefix: str, s3_server: Server, gcs_server: Server) -> Opened:
    from pyarrow.fs import GcsFileSystem

    if request.param == "gs":
        filesystem: Any = GcsFileSystem(anonymous=True, scheme="http", endpoint_override=gcs_server.authority)
    else:
        filesystem = _arrow_s3(s3_server)
    for number in range(2):
        table = pa.table({"n": [number * 10, number * 10 + 1], "s": ["x", None]})
        path = f"{BUCKET}/{prefix}/table/year={2023 + number}/{number}.parquet"
        with filesystem.open_output_stream(path) as stream:
            pq.write_table(table, stream)
    for name, content in {"a.csv": b"n\n1\n2\n", "b.jsonl": b'{"n": 1}\n', "c.txt": b"one\ntwo\n", "_d": b"x"}.items():
        with filesystem.open_output_stream(f"{BUCKET}/{prefix}/files/{name}", compression=None) as stream:
            stream.write(content)
    found: Opened = request.getfixturevalue(request.param)
    return found


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
    (file,) = listed(path, filesystem=filesystem)
    assert str(file) == shown
    assert file.name == "0.parquet"
    assert file.size > 0
    assert pickle.loads(pickle.dumps(file)).place is pickle.loads(pickle.dumps(file)).place
    assert listed([path, path.replace("2023/0.", "2024/1.")], filesystem=filesystem)[1].place is file.place
    assert "test:test" not in source_of(read_parquet(path, filesystem=filesystem)).name


def test_what_is_not_there_is_named(opened: Opened) -> None:
    for where in ("nowhere", "table/*.csv", "nowhere/*.csv"):
        path, filesystem, shown = opened(where)
        with pytest.raises(FileNotFoundError) as caught:
            read_parquet(path, filesystem=filesystem)
        assert shown.partition("*")[0].rstrip("/") in str(caught.value)
        assert "test:test" not in str(caught.value)
