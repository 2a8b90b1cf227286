"""S3 and Azure through obstore: conditional puts, and uploads with fewer round trips than pyarrow's."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline._core.checkpoint_records import FileEntry
from paceline._storage import store
from paceline._storage.arrow_store import make_missing_bucket_error
from paceline._storage.file_writer import LargeFileWriter

_NUM_PARTS_AT_ONCE = 2
_MAX_PARTS = 9000
"""S3 allows ten thousand parts per object."""

PART_RETRY_CONFIG = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2},
}
"""Retries for one part of a large object; `RetryingStore` retries everything else."""


class ObjectStore:
    has_conditional_puts = True

    def __init__(
        self, make_client: Callable[..., Any], *, filesystem: Callable[[], Any], bucket: str, path: str, uri: str
    ) -> None:
        self._obstore: Any = importlib.import_module("obstore")
        self.path = path.rstrip("/")
        self.uri = uri.rstrip("/")
        self._bucket = bucket
        self._make_filesystem = filesystem
        # If obstore retried a conditional put, its success would look like a lost race.
        self._once = make_client(retry_config={"max_retries": 0})
        self._parts = make_client(retry_config=PART_RETRY_CONFIG)

    @cached_property
    def filesystem(self) -> Any:
        return self._make_filesystem()

    def read(self, key: str) -> bytes:
        return self.read_tagged(key)[0]

    def read_tagged(self, key: str) -> tuple[bytes, str]:
        with self._name_missing(key):
            result = self._obstore.get(self._once, key)
            return bytes(result.bytes()), result.meta["e_tag"] or ""

    def write(self, key: str, data: bytes) -> None:
        with self._name_missing(key):
            self._obstore.put(self._once, key, data, use_multipart=False)

    def create(self, key: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        try:
            with self._name_missing(key):
                self._obstore.put(self._once, key, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True

    def replace(self, key: str, data: bytes, tag: str) -> str | None:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            with self._name_missing(key):
                put = self._obstore.put(self._once, key, data, mode={"e_tag": tag}, use_multipart=False)
        except (PreconditionError, AlreadyExistsError, FileNotFoundError):
            return None
        return put["e_tag"] or ""

    def upload(self, source: Path, key: str, moved: store.ProgressCallback = store.ignore_progress) -> FileEntry:
        hasher = store.TransferHasher(moved)
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            part = max(store.CHUNK, -(-size // _MAX_PARTS))
            pieces = store.iter_hashed_chunks(file, hasher, part)
            with self._name_missing(key):
                if size <= part:
                    self._obstore.put(self._parts, key, b"".join(pieces), use_multipart=False)
                else:
                    self._obstore.put(self._parts, key, pieces, chunk_size=part, max_concurrency=_NUM_PARTS_AT_ONCE)
        return hasher.to_file_entry(key)

    def download(self, key: str, target: Path, moved: store.ProgressCallback = store.ignore_progress) -> FileEntry:
        with self._name_missing(key):
            size = self._obstore.head(self._parts, key)["size"]
            with LargeFileWriter(target, is_durable=False, moved=moved) as writer:
                for start in range(0, size, store.CHUNK):
                    piece = self._obstore.get_range(self._parts, key, start=start, end=min(start + store.CHUNK, size))
                    writer.add(memoryview(piece))
                return writer.finish(key)

    def list_entries(self, prefix: str = "") -> list[store.StoreEntry]:
        entries = [
            store.StoreEntry(item["path"], item["size"])
            for page in self._obstore.list(self._once, prefix or None)
            for item in page
        ]
        # pyarrow leaves an empty object for each directory; in this listing its name has lost the trailing slash.
        names = {entry.key for entry in entries}
        parents = {key[:end] for key in names for end in range(len(key)) if key[end] == "/"}
        return sorted((entry for entry in entries if entry.key not in parents), key=lambda entry: entry.key)

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._name_missing(key):
            self._obstore.delete(self._once, key)

    def delete_all(self, prefix: str) -> None:
        keys = [entry.key for entry in self.list_entries(prefix)]
        if keys:
            self._obstore.delete(self._once, keys)

    @contextlib.contextmanager
    def _name_missing(self, key: str) -> Iterator[None]:
        """Tell a missing bucket or container, in the words of S3 or Azure, from a missing object."""
        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
                raise make_missing_bucket_error(self._bucket) from None
            raise FileNotFoundError(f"{self.uri}/{key} does not exist") from None
