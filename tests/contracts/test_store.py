"""Every store keeps the contract: S3 with and without obstore, GCS, pyarrow's and fsspec's filesystems.

Azure is asked for with PACELINE_TEST_AZURITE, the address of an azurite: installing one takes too long for every run.
docs/guides/storage.md says how it is started.
"""

import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.fs as arrow
import pytest
import xxhash
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from paceline._core.errors import StorageError
from paceline._storage import address
from paceline._storage.address import open_store_at
from paceline._storage.arrow_store import ArrowStore
from paceline._storage.store import CHUNK, Store, StoreEntry
from servers import BUCKET, azure_path

# Named here because a server that is started in the middle of a test counts as left behind by it.
pytestmark = pytest.mark.usefixtures("s3_server", "s3fs_filesystem", "gcs_server")

Opened = Callable[[str], Store]
"""A store that lies below a prefix of its own."""


STORES = [
    *("s3", "s3_without_obstore", "s3_through_fsspec", "gcs", "azure", "azure_without_obstore"),
    *("local", "subtree", "memory", "fsspec_directory"),
]


CONDITIONAL = ["s3", "azure"]


@pytest.fixture
def without_obstore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "find_spec", lambda name: None)


@pytest.fixture(params=STORES)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    if request.param.endswith("without_obstore"):
        request.getfixturevalue("without_obstore")
    match request.param:
        case "s3" | "s3_without_obstore":
            request.getfixturevalue("s3_environment")
            return lambda prefix: open_store_at(f"s3://{BUCKET}/{prefix}")
        case "s3_through_fsspec":
            filesystem = request.getfixturevalue("s3fs_filesystem")
            return lambda prefix: open_store_at(f"{BUCKET}/{prefix}", filesystem)
        case "gcs":
            server = request.getfixturevalue("gcs_server")
            options = f"scheme=http&endpoint_override={server.authority}"
            return lambda prefix: open_store_at(f"gs://anonymous@{BUCKET}/{prefix}?{options}")
        case "azure" | "azure_without_obstore":
            path = azure_path()
            return lambda prefix: open_store_at(path(prefix))
        case "local":
            return lambda prefix: open_store_at(str(tmp_path / prefix), arrow.LocalFileSystem())
        case "subtree":
            return lambda prefix: open_store_at(prefix, arrow.SubTreeFileSystem(str(tmp_path), arrow.LocalFileSystem()))
        case "memory":
            return lambda prefix: open_store_at(f"/{prefix}", MemoryFileSystem())
        case _:
            return lambda prefix: open_store_at(prefix, DirFileSystem(str(tmp_path), LocalFileSystem()))


@pytest.fixture
def store(open_store: Opened) -> Store:
    return open_store(f"runs/{uuid.uuid4().hex[:8]}")


def test_a_store_says_whether_it_has_conditional_puts(open_store: Opened, request: pytest.FixtureRequest) -> None:
    assert open_store("x").has_conditional_puts == (request.node.callspec.params["open_store"] in CONDITIONAL)


class TestStore:
    def test_reads_what_was_written_last(self, store: Store) -> None:
        store.write("a/b.txt", b"one")
        store.write("a/b.txt", b"two")
        assert store.read("a/b.txt") == b"two"

    def test_a_missing_object_is_a_file_not_found_error(self, store: Store, tmp_path: Path) -> None:
        for ask in (store.read, store.read_tagged, lambda key: store.download(key, tmp_path / "x")):
            with pytest.raises(FileNotFoundError):
                ask("nowhere/at/all")

    def test_create_makes_one_and_replace_takes_the_tag_it_was_read_with_and_no_other(self, store: Store) -> None:
        assert store.create("lease", b"first")
        assert not store.create("lease", b"second")
        data, tag = store.read_tagged("lease")
        assert data == b"first"
        newer = store.replace("lease", b"second", tag)
        assert newer is not None
        assert store.replace("lease", b"third", tag) is None
        assert store.read("lease") == b"second"
        newest = store.replace("lease", b"third", newer)
        assert newest is not None
        assert store.read("lease") == b"third"
        store.delete("lease")
        assert store.replace("lease", b"fourth", newest) is None
        assert store.list_entries() == [], "of what is gone, nothing is made"

    @pytest.mark.parametrize("size", [0, 1, CHUNK + 7], ids=["empty", "small", "two parts"])
    def test_uploads_and_downloads_a_file_with_its_hash(self, store: Store, tmp_path: Path, size: int) -> None:
        data = os.urandom(1 << 16) * (size // (1 << 16)) + b"x" * (size % (1 << 16))
        (tmp_path / "source").write_bytes(data)
        moved: list[int] = []
        up = store.upload(tmp_path / "source", "big/file.bin", moved.append)
        assert (up.path, up.size, up.hash) == ("big/file.bin", size, xxhash.xxh3_128(data).hexdigest())
        assert sum(moved) == size
        moved.clear()
        down = store.download("big/file.bin", tmp_path / "target", moved.append)
        assert down == up
        assert sum(moved) == size
        assert (tmp_path / "target").read_bytes() == data

    def test_nothing_is_compressed_whatever_it_is_called(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "source").write_bytes(b"plain")
        store.upload(tmp_path / "source", "data.gz")
        store.write("more.bz2", b"plain")
        assert store.read("data.gz") == store.read("more.bz2") == b"plain"

    def test_keys_are_taken_literally_by_the_store_and_by_its_filesystem(self, store: Store) -> None:
        keys = sorted(["a b/ü.bin", "x=1/y+2.bin", "a%20b", "v#1", "q?.bin", "~tilde&and,comma;", "[0]*"])
        for key in keys:
            store.write(key, key.encode())
        assert [entry.key for entry in store.list_entries()] == keys
        for key in keys:
            assert store.read(key) == key.encode()
            with store.filesystem.open_input_file(f"{store.path}/{key}") as file:
                assert file.read() == key.encode()
            store.delete(key)
        assert store.list_entries() == []

    def test_a_key_that_leads_out_of_the_store_is_refused_by_every_call(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "source").write_bytes(b"x")
        calls: list[Callable[[str], object]] = [
            *(store.read, store.list_entries, store.delete, store.delete_all),
            *(lambda key: store.write(key, b"x"), lambda key: store.create(key, b"x")),
            lambda key: store.replace(key, b"x", "tag"),
            lambda key: store.upload(tmp_path / "source", key),
            lambda key: store.download(key, tmp_path / "target"),
        ]
        for key in ("../outside", "a/../../outside", "./a", "a/..", "a\0b"):
            for call in calls:
                with pytest.raises(ValueError, match="must stay below the root"):
                    call(key)

    def test_a_listing_has_everything_below_a_prefix_and_nothing_beside_it(self, store: Store) -> None:
        assert store.list_entries() == []
        for key in ("a/1", "a/b/2", "ab/3", "c"):
            store.write(key, b"12345")
        assert store.list_entries("a") == [StoreEntry("a/1", 5), StoreEntry("a/b/2", 5)]
        assert [entry.key for entry in store.list_entries()] == ["a/1", "a/b/2", "ab/3", "c"]
        assert store.list_entries("nothing") == []

    def test_a_listing_is_never_an_old_one(self, open_store: Opened) -> None:
        prefix = f"runs/{uuid.uuid4().hex[:8]}"
        one, other = open_store(prefix), open_store(prefix)
        assert one.list_entries("journal") == []
        other.write("journal/0", b"x")
        assert one.list_entries("journal") == [StoreEntry("journal/0", 1)]

    def test_deleting_takes_what_was_named_and_needs_nothing_to_be_there(self, store: Store) -> None:
        for key in ("a/1", "a/b/2", "ab/3"):
            store.write(key, b"x")
        store.delete("a/1")
        store.delete("a/1")
        assert [entry.key for entry in store.list_entries()] == ["a/b/2", "ab/3"]
        store.delete_all("a")
        store.delete_all("a")
        assert [entry.key for entry in store.list_entries()] == ["ab/3"]


@pytest.mark.parametrize("open_store", CONDITIONAL, indirect=True)
class TestConditionalPuts:
    """Of the stores that say they have them."""

    def test_of_many_that_create_at_once_one_does(self, store: Store) -> None:
        created = _at_once(8, lambda i: store.create("race", b"%d" % i))
        assert created.count(True) == 1
        assert store.read("race") == b"%d" % created.index(True)

    def test_of_many_that_replace_at_once_one_does(self, store: Store) -> None:
        store.create("race", b"before")
        tag = store.read_tagged("race")[1]
        won = [new is not None for new in _at_once(8, lambda i: store.replace("race", b"%d" % i, tag))]
        assert won.count(True) == 1
        assert store.read("race") == b"%d" % won.index(True)


@pytest.fixture(params=[True, False], ids=["obstore", "pyarrow"])
def either_client(request: pytest.FixtureRequest) -> None:
    if not request.param:
        request.getfixturevalue("without_obstore")


@pytest.mark.usefixtures("either_client")
def test_a_missing_azure_container_fails_at_once_with_a_hint() -> None:
    store = open_store_at(azure_path("nowhere")("runs"))
    calls: list[Callable[[], object]] = [
        lambda: store.write("a", b"x"),
        lambda: store.create("a", b"x"),
        lambda: store.list_entries(),
        lambda: store.delete_all("a"),
        *([lambda: store.replace("a", b"x", "tag")] if store.has_conditional_puts else []),
    ]
    for call in calls:
        with pytest.raises(StorageError, match=r"(?s)nowhere.*hint: create the bucket first, or correct storage_path"):
            call()


@pytest.mark.usefixtures("either_client")
def test_a_wrong_azure_key_fails_at_once() -> None:
    store = open_store_at(azure_path(key="AAAA")("runs"))
    for call in (
        store.list_entries,
        lambda: store.write("a", b"x"),
        lambda: store.read("a"),
        lambda: store.delete("a"),
    ):
        with pytest.raises(StorageError, match=r"(?s)403.*hint: check the credentials"):
            call()


def test_nothing_beside_the_root_of_a_store_can_be_deleted(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"x")
    bare = ArrowStore(arrow.LocalFileSystem(), str(tmp_path / "run"), "run")
    for store in (bare, open_store_at(str(tmp_path / "run"), arrow.LocalFileSystem())):
        for key in ("../outside", str(outside)):
            for delete in (store.delete, store.delete_all):
                with pytest.raises(ValueError, match="must stay below the root"):
                    delete(key)
    assert (outside / "file").read_bytes() == b"x"


def _at_once(number: int, call: Callable[[int], object]) -> list:
    """What each of many threads is answered that all begin together."""
    gate = threading.Barrier(number)

    def work(index: int) -> object:
        gate.wait()
        return call(index)

    with ThreadPoolExecutor(number) as threads:
        return list(threads.map(work, range(number)))
