"""Any `pyarrow.fs` filesystem as a store, and through it any fsspec filesystem. None of them has conditional puts.

Works around what pyarrow and fsspec hide: a listing that fails or finds no bucket is an error and not an empty result,
cached listings are bypassed, and a name that ends in .gz is not compressed.
"""

from __future__ import annotations

import contextlib
import posixpath
import uuid
from pathlib import Path
from typing import Any

from paceline._core.checkpoint_records import FileEntry
from paceline._storage import store
from paceline._storage.file_writer import LargeFileWriter

_BUCKET_KINDS = frozenset({"s3", "s3a", "gcs", "gs", "abfs", "abfss", "az", "adl", "oss", "cos", "oci"})
_ATOMIC_PUT_KINDS = _BUCKET_KINDS | {"memory"}
"""Filesystems where an object appears complete when it is closed, so that no temporary name is needed."""

_PART_SUFFIX = ".part-"


class ArrowStore:
    has_conditional_puts = False

    def __init__(self, filesystem: Any, path: str, uri: str) -> None:
        self.filesystem = filesystem
        self.path = path.rstrip("/")
        self.uri = uri.rstrip("/")
        self._fsspec = unwrap_fsspec(filesystem)
        protocol = filesystem.type_name if self._fsspec is None else self._fsspec.protocol
        kind = protocol if isinstance(protocol, str) else protocol[0]
        self._has_buckets = kind in _BUCKET_KINDS
        self._has_atomic_puts = kind in _ATOMIC_PUT_KINDS

    def read(self, key: str) -> bytes:
        with self.filesystem.open_input_stream(self._full_path(key), compression=None) as stream:
            data: bytes = stream.read()
        return data

    def read_tagged(self, key: str) -> tuple[bytes, str]:
        data = self.read(key)
        return data, _content_tag(data)

    def write(self, key: str, data: bytes) -> None:
        with self._open_put(key) as stream:
            stream.write(data)

    def create(self, key: str, data: bytes) -> bool:
        from pyarrow.fs import FileType

        if self.filesystem.get_file_info(self._full_path(key)).type == FileType.File:
            return False
        self.write(key, data)
        return True

    def replace(self, key: str, data: bytes, tag: str) -> str | None:
        try:
            if self.read_tagged(key)[1] != tag:
                return None
        except FileNotFoundError:
            return None
        self.write(key, data)
        return _content_tag(data)

    def upload(self, source: Path, key: str, moved: store.ProgressCallback = store.ignore_progress) -> FileEntry:
        hasher = store.TransferHasher(moved)
        with source.open("rb") as file, self._open_put(key) as stream:
            for chunk in store.iter_hashed_chunks(file, hasher):
                stream.write(chunk)
        return hasher.to_file_entry(key)

    def download(self, key: str, target: Path, moved: store.ProgressCallback = store.ignore_progress) -> FileEntry:
        with (
            self.filesystem.open_input_stream(self._full_path(key), compression=None) as stream,
            LargeFileWriter(target, is_durable=False, moved=moved) as writer,
        ):
            while chunk := stream.read(store.CHUNK):
                writer.add(memoryview(chunk))
            return writer.finish(key)

    def list_entries(self, prefix: str = "") -> list[store.StoreEntry]:
        root = self._full_path(prefix)
        files = self._list_with_fsspec(root) if self._fsspec is not None else self._list_with_arrow(root)
        entries = [store.StoreEntry(posixpath.relpath(path, self.path or "/"), size) for path, size in files]
        return sorted(
            (e for e in entries if _PART_SUFFIX not in posixpath.basename(e.key)), key=lambda entry: entry.key
        )

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._fsspec is not None:
                self._fsspec.rm_file(self._full_path(key))  # pyarrow calls `rm`, which treats the name as a pattern
            else:
                self.filesystem.delete_file(self._full_path(key))

    def delete_all(self, prefix: str) -> None:
        for entry in self.list_entries(prefix):
            self.delete(entry.key)
        if not self._has_atomic_puts:
            with contextlib.suppress(FileNotFoundError):
                self.filesystem.delete_dir(self._full_path(prefix))

    def _full_path(self, key: str) -> str:
        return posixpath.join(self.path, store.check_key(key)) if key else self.path

    @contextlib.contextmanager
    def _open_put(self, key: str) -> Any:
        """Open a stream whose object appears under its name only when it is complete."""
        path = self._full_path(key)
        if self._has_atomic_puts:
            with self.filesystem.open_output_stream(path, compression=None) as stream:
                yield stream
            return
        part = f"{path}{_PART_SUFFIX}{uuid.uuid4().hex[:8]}"
        self.filesystem.create_dir(posixpath.dirname(path), recursive=True)
        try:
            with self.filesystem.open_output_stream(part, compression=None) as stream:
                yield stream
            self.filesystem.move(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self.filesystem.delete_file(part)
            raise

    def _list_with_arrow(self, root: str) -> list[tuple[str, int]]:
        from pyarrow.fs import FileSelector, FileType

        infos = self.filesystem.get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
        if not infos and self._has_buckets:
            # A missing bucket lists as empty too.
            bucket = root.strip("/").partition("/")[0]
            if self.filesystem.get_file_info(bucket).type == FileType.NotFound:
                raise make_missing_bucket_error(bucket)
        return [(info.path, info.size) for info in infos if info.type == FileType.File]

    def _list_with_fsspec(self, root: str) -> list[tuple[str, int]]:
        """List directory by directory: fsspec's `find` skips directories that it cannot list."""
        filesystem = self._fsspec
        assert filesystem is not None
        filesystem.invalidate_cache()
        if self._has_buckets:
            bucket = root.strip("/").partition("/")[0]
            if not filesystem.exists(bucket):
                raise make_missing_bucket_error(bucket)
        files: list[tuple[str, int]] = []
        ahead = [root]
        while ahead:
            directory = ahead.pop()
            try:
                entries = filesystem.ls(directory, detail=True)
            except FileNotFoundError:
                if directory != root:
                    raise
                continue
            for entry in entries:
                path = entry["name"]
                if entry["type"] != "directory":
                    # The marker of an empty directory is an object too; its name ends in a slash.
                    files += [(path, int(entry["size"] or 0))] if not path.endswith("/") else []
                elif path.rstrip("/") != directory.rstrip("/"):
                    ahead.append(path)
        stripped = str(filesystem._strip_protocol(root or "/")).rstrip("/")
        return [(root + path.removeprefix(stripped), size) for path, size in files]


def make_missing_bucket_error(bucket: str) -> OSError:
    # Not a FileNotFoundError, which means that one object is missing.
    return OSError(f"NoSuchBucket: bucket {bucket!r} does not exist or cannot be accessed")


def _content_tag(data: bytes) -> str:
    hasher = store.TransferHasher()
    hasher.add(data)
    return hasher.to_file_entry("").hash


def unwrap_fsspec(filesystem: Any) -> Any:
    """Return the fsspec filesystem inside a pyarrow one; None if it is pyarrow's own."""
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    if isinstance(filesystem, PyFileSystem) and isinstance(filesystem.handler, FSSpecHandler):
        return filesystem.handler.fs
    return None
