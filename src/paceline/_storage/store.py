"""The interface of a store, where a run is kept if not on a disk of this machine; and transfers of many files.

A key is a posix path relative to the store's root. Objects are put atomically; there are no directories and no renames.
If `has_conditional_puts`, `create` and `replace` decide between two writers; otherwise they check first and then write.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from paceline._core.checkpoint_records import FileEntry

CHUNK = 8 << 20
MAX_PARALLEL = 4

T = TypeVar("T")

ProgressCallback = Callable[[int], None]
"""Called with the number of bytes transferred, to show that a transfer is alive."""


def ignore_progress(num_bytes: int) -> None:
    """For transfers that nobody watches."""


@dataclass(frozen=True)
class StoreEntry:
    key: str
    size: int


class Store(Protocol):
    @property
    def uri(self) -> str:
        """The store's location for display, without credentials and options."""

    @property
    def has_conditional_puts(self) -> bool: ...
    @property
    def filesystem(self) -> Any:
        """The `pyarrow.fs.FileSystem` on which `path` leads to the same objects."""

    @property
    def path(self) -> str: ...
    def read(self, key: str) -> bytes:
        """Raises `FileNotFoundError` if there is no such object."""

    def read_tagged(self, key: str) -> tuple[bytes, str]:
        """Also return the tag for `replace`, which changes whenever the object does."""

    def write(self, key: str, data: bytes) -> None: ...
    def create(self, key: str, data: bytes) -> bool:
        """Put a new object; return False if one exists."""

    def replace(self, key: str, data: bytes, tag: str) -> str | None:
        """Replace the object that has this tag and return the new tag; None if the object has changed.

        A tag may be a hash of the contents. So each put must differ from the last, by a time or a random word in it:
        identical bytes would leave the tag unchanged, and a second writer would win with it too.
        """

    def upload(self, source: Path, key: str, moved: ProgressCallback = ignore_progress) -> FileEntry:
        """Put a file of any size, and hash it on the way."""

    def download(self, key: str, target: Path, moved: ProgressCallback = ignore_progress) -> FileEntry:
        """Download an object into a file, and hash it on the way."""

    def list_entries(self, prefix: str = "") -> list[StoreEntry]:
        """Return everything below a prefix, sorted by key. Fails rather than omit an entry."""

    def delete(self, key: str) -> None:
        """Delete an object; no error if there is none."""

    def delete_all(self, prefix: str) -> None: ...


def check_key(key: str) -> str:
    """Return the key if it stays below the store's root: joined to a path, any other would reach other files."""
    if key.startswith("/") or "\0" in key or any(part in (".", "..") for part in key.split("/")):
        raise ValueError(f"key must stay below the root of the store, got {key!r}")
    return key


class TransferHasher:
    """Size and hash of the bytes transferred."""

    def __init__(self, moved: ProgressCallback = ignore_progress) -> None:
        import xxhash

        self._digest = xxhash.xxh3_128()
        self._moved = moved
        self.size = 0

    def add(self, chunk: Any) -> None:
        self._digest.update(chunk)
        self.size += len(chunk)
        self._moved(len(chunk))

    def to_file_entry(self, name: str) -> FileEntry:
        return FileEntry(name, self.size, self._digest.hexdigest())


def iter_hashed_chunks(file: BinaryIO, hasher: TransferHasher, size: int = CHUNK) -> Iterator[bytes]:
    """Yield a file in chunks, each a new buffer, because an upload may still hold the previous one."""
    while chunk := file.read(size):
        hasher.add(chunk)
        yield chunk


def read_if_exists(store: Store, key: str) -> bytes | None:
    try:
        return store.read(key)
    except FileNotFoundError:
        return None


def upload_all(store: Store, files: Sequence[tuple[Path, str]]) -> list[FileEntry]:
    """Upload every (file, key) and return the entries in order. Stops at the first failure."""
    return run_in_parallel([partial(store.upload, path, key) for path, key in files])


def download_all(store: Store, files: Sequence[tuple[str, Path]]) -> list[FileEntry]:
    """Download every (key, file) and return the entries in order. Stops at the first failure."""
    for directory in {path.parent for _, path in files}:
        directory.mkdir(parents=True, exist_ok=True)
    return run_in_parallel([partial(store.download, key, path) for key, path in files])


def run_in_parallel(calls: Sequence[Callable[[], T]], num_at_once: int = MAX_PARALLEL) -> list[T]:
    """Return the results in order. After a failure, starts no more calls, waits for the running ones, and raises it."""
    answers: dict[int, T] = {}
    failures: list[BaseException] = []
    ahead = iter(enumerate(calls))
    # Protects `ahead`, which two threads cannot advance at once, and orders the failures.
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                item = None if failures else next(ahead, None)
            if item is None:
                return
            index, call = item
            try:
                answers[index] = call()
            except BaseException as error:  # noqa: BLE001 - raised below, by the thread that waits
                with lock:
                    failures.append(error)

    # Daemon threads: a transfer that hangs must not keep the process from exiting.
    threads = [
        threading.Thread(target=work, name="paceline-transfer", daemon=True)
        for _ in range(min(num_at_once, len(calls)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [answers[index] for index in range(len(calls))]
