"""Writing to object stores and other filesystems: whole objects, all or none, and nothing that was there is lost."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import S3FileSystem
from rows_in_units import dataset_of

from paceline._core.errors import StorageError
from paceline._storage.address import open_store_at
from paceline._storage.retrying_store import RetryingStore
from paceline.data.block import Block
from paceline.data.context import DataContext
from paceline.data.write import write_images, write_json, write_parquet
from servers import BUCKET, Server


@pytest.fixture(autouse=True)
def staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where files are staged: nothing may be left there."""
    path = tmp_path / "staged"
    path.mkdir()
    monkeypatch.setattr(DataContext, "_current", DataContext(spill_path=str(path)))
    yield path
    assert os.listdir(path) == []


@pytest.fixture
def place(s3_environment: Server) -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/out"


def _rows(*numbers: int) -> dict[str, Any]:
    return {"x": np.array(numbers, np.int64)}


def _read(uri: str, filesystem: Any = None) -> dict[str, list[int]]:
    store = open_store_at(uri, filesystem)
    return {
        entry.key: pq.read_table(pa.BufferReader(store.read(entry.key))).column("x").to_pylist()
        for entry in store.list_entries()
    }


def _fails() -> Iterator[Block]:
    yield Block(_rows(5))
    raise RuntimeError("broken")


def test_modes_are_those_of_a_disk_and_a_failure_leaves_nothing(place: str) -> None:
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
def test_a_failing_upload_takes_back_the_others_and_keeps_what_was_there(
    place: str, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parquet(dataset_of([_rows(0)]), place)
    upload = RetryingStore.upload

    def refused(self: RetryingStore, source: Path, key: str, *more: Any) -> Any:
        if key == "part-000003.parquet":
            raise StorageError("no more")
        return upload(self, source, key, *more)

    with monkeypatch.context() as patch:
        patch.setattr(RetryingStore, "upload", refused)
        with pytest.raises(StorageError, match="no more"):
            write_parquet(dataset_of(*([_rows(n)] for n in range(1, 5))), place, mode=mode)
    assert _read(place) == {"part-000000.parquet": [0]}


def test_partitions_are_prefixes(place: str) -> None:
    rows = {"day": pa.array(["2024-01-01", "a b/c"]), "x": np.arange(2)}
    write_parquet(dataset_of([rows]), place, partition_cols=["day"])
    assert _read(place) == {"day=2024-01-01/part-000000.parquet": [0], "day=a%20b%2Fc/part-000000.parquet": [1]}


def test_a_bucket_that_is_not_there_is_named(s3_environment: Server) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        write_parquet(dataset_of([_rows(1)]), "s3://nowhere/out")


def test_a_filesystem_of_pyarrow_leads_there_too(place: str, s3_environment: Server) -> None:
    filesystem = S3FileSystem(endpoint_override=s3_environment.authority, scheme="http", region="us-east-1")
    write_parquet(dataset_of([_rows(1)]), place.removeprefix("s3://"), filesystem=filesystem)
    assert _read(place) == {"part-000000.parquet": [1]}


def test_any_filesystem_of_fsspec_will_do() -> None:
    memory = fsspec.filesystem("memory")
    root = f"/{uuid.uuid4().hex}"
    try:
        write_json(dataset_of([_rows(1, 2)]), f"{root}/rows", filesystem=memory)
        write_images(dataset_of([{"image": np.zeros((2, 3, 4), np.uint8)}]), f"memory:/{root}/images", "image")
        assert memory.cat(f"{root}/rows/part-000000.json") == b'{"x":1}\n{"x":2}\n'
        assert [path.rpartition("/")[2] for path in sorted(memory.find(f"{root}/images"))] == [
            "part-000000.png",
            "part-000001.png",
        ]
    finally:
        memory.rm(root, recursive=True)


def test_what_a_killed_writer_had_staged_is_swept_by_the_next(place: str, staged: Path) -> None:
    left = (
        "import sys; from pathlib import Path; from paceline.data.sinks import bucket, staging; "
        "Path(sys.argv[1], staging.new_staging_name(bucket._PREFIX)).mkdir()"
    )
    subprocess.run([sys.executable, "-c", left, str(staged)], check=True, timeout=100)
    assert len(os.listdir(staged)) == 1
    write_parquet(dataset_of([_rows(1)]), place)
    assert os.listdir(staged) == []
