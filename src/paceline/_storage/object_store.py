"""S3 and Azure through obstore: conditional puts, and uploads with fewer round trips than pyarrow's."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline._engine.messages import FileEntry
from paceline._storage.arrow_store import make_missing_bucket_error
from paceline._storage.store import (
    CHUNK,
    ProgressCallback,
    StoreEntry,
    TransferHasher,
    ignore_progress,
    iter_hashed_chunks,
)

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
        self, make: Callable[..., Any], *, filesystem: Callable[[], Any], bucket: str, path: str, uri: str
    ) -> None:
        self.path = path.rstrip("/")
        self.uri = uri.rstrip("/")
        self._bucket = bucket
        self._make_filesystem = filesystem
        # If obstore retried a conditional put, its success would look like a lost race.
        self._once = make(retry_config={"max_retries": 0})
        self._parts = make(retry_config=PART_RETRY_CONFIG)

    @cached_property
    def filesystem(self) -> Any:
        return self._make_filesystem()

    def read(self, key: str) -> bytes:
        return self.read_tagged(key)[0]

    def read_tagged(self, key: str) -> tuple[bytes, str]:
        import obstore

        try:
            found = obstore.get(self._once, key)
            return bytes(found.bytes()), found.meta["e_tag"] or ""
        except FileNotFoundError as error:
            raise self._missing_error(error, key) from None

    def write(self, key: str, data: bytes) -> None:
        import obstore

        try:
            obstore.put(self._once, key, data, use_multipart=False)
        except FileNotFoundError as error:
            raise self._missing_error(error, key) from None

    def create(self, key: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            obstore.put(self._once, key, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        except FileNotFoundError as error:
            raise self._missing_error(error, key) from None
        return True

    def replace(self, key: str, data: bytes, tag: str) -> str | None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            put = obstore.put(self._once, key, data, mode={"e_tag": tag}, use_multipart=False)
        except (PreconditionError, AlreadyExistsError):
            return None
        except FileNotFoundError as error:
            if _is_bucket_missing(error):
                raise self._missing_error(error, key) from None
            return None
        return put["e_tag"] or ""

    def upload(self, source: Path, key: str, moved: ProgressCallback = ignore_progress) -> FileEntry:
        import obstore

        tally = TransferHasher(moved)
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            part = max(CHUNK, -(-size // _MAX_PARTS))
            pieces = iter_hashed_chunks(file, tally, part)
            try:
                if size <= part:
                    obstore.put(self._parts, key, b"".join(pieces), use_multipart=False)
                else:
                    obstore.put(self._parts, key, pieces, chunk_size=part, max_concurrency=_NUM_PARTS_AT_ONCE)
            except FileNotFoundError as error:
                raise self._missing_error(error, key) from None
        return tally.to_file_entry(key)

    def download(self, key: str, target: Path, moved: ProgressCallback = ignore_progress) -> FileEntry:
        import obstore

        tally = TransferHasher(moved)
        try:
            size = obstore.head(self._parts, key)["size"]
            with target.open("wb") as file:
                for start in range(0, size, CHUNK):
                    piece = obstore.get_range(self._parts, key, start=start, end=min(start + CHUNK, size))
                    tally.add(memoryview(piece))
                    file.write(piece)
        except FileNotFoundError as error:
            raise self._missing_error(error, key) from None
        return tally.to_file_entry(key)

    def list_entries(self, prefix: str = "") -> list[StoreEntry]:
        import obstore

        found = [
            StoreEntry(one["path"], one["size"]) for page in obstore.list(self._once, prefix or None) for one in page
        ]
        # pyarrow leaves an empty object for each directory; in this listing its name has lost the trailing slash.
        names = {entry.key for entry in found}
        parents = {key[:end] for key in names for end in range(len(key)) if key[end] == "/"}
        return sorted((entry for entry in found if entry.key not in parents), key=lambda entry: entry.key)

    def delete(self, key: str) -> None:
        import obstore

        try:
            obstore.delete(self._once, key)
        except FileNotFoundError as error:
            if _is_bucket_missing(error):
                raise self._missing_error(error, key) from None

    def delete_all(self, prefix: str) -> None:
        import obstore

        keys = [entry.key for entry in self.list_entries(prefix)]
        if keys:
            obstore.delete(self._once, keys)

    def _missing_error(self, error: FileNotFoundError, key: str) -> OSError:
        if _is_bucket_missing(error):
            return make_missing_bucket_error(self._bucket)
        return FileNotFoundError(f"{self.uri}/{key} is not there")


def _is_bucket_missing(error: FileNotFoundError) -> bool:
    """Whether the whole bucket or container is missing and not only the object, in the words of S3 or Azure."""
    return "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error)
