"""Any `pyarrow.fs` filesystem as a store, and through it any of fsspec. None of them has conditional puts.

What pyarrow and fsspec hide is undone here: a listing that fails or finds no bucket is not an empty one, a cached
listing is not asked, and a name that ends in .gz is not compressed.
"""

from __future__ import annotations

import contextlib
import posixpath
import uuid
from pathlib import Path
from typing import Any

from paceline._engine.messages import FileEntry
from paceline._storage.store import CHUNK, Entry, Moved, Tally, chunks, own_key, unwatched

_BUCKETS = frozenset({"s3", "s3a", "gcs", "gs", "abfs", "abfss", "az", "adl", "oss", "cos", "oci"})
_WHOLE_PUTS = _BUCKETS | {"memory"}
"""Filesystems where an object appears whole when it is closed, so that no detour over another name is needed."""

_PART = ".part-"


class ArrowStore:
    conditional = False

    def __init__(self, filesystem: Any, path: str, uri: str) -> None:
        self.filesystem = filesystem
        self.path = path.rstrip("/")
        self.uri = uri.rstrip("/")
        self._fsspec = fsspec_behind(filesystem)
        kind = _kind(filesystem, self._fsspec)
        self._has_buckets = kind in _BUCKETS
        self._whole_puts = kind in _WHOLE_PUTS

    def read(self, key: str) -> bytes:
        with self.filesystem.open_input_stream(self._at(key), compression=None) as stream:
            data: bytes = stream.read()
        return data

    def read_tagged(self, key: str) -> tuple[bytes, str]:
        data = self.read(key)
        return data, _tag(data)

    def write(self, key: str, data: bytes) -> None:
        with self._put(key) as stream:
            stream.write(data)

    def create(self, key: str, data: bytes) -> bool:
        from pyarrow.fs import FileType

        if self.filesystem.get_file_info(self._at(key)).type == FileType.File:
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
        return _tag(data)

    def upload(self, source: Path, key: str, moved: Moved = unwatched) -> FileEntry:
        tally = Tally(moved)
        with source.open("rb") as file, self._put(key) as stream:
            for chunk in chunks(file, tally):
                stream.write(chunk)
        return tally.entry(key)

    def download(self, key: str, target: Path, moved: Moved = unwatched) -> FileEntry:
        tally = Tally(moved)
        with self.filesystem.open_input_stream(self._at(key), compression=None) as stream, target.open("wb") as file:
            while chunk := stream.read(CHUNK):
                tally.add(chunk)
                file.write(chunk)
        return tally.entry(key)

    def entries(self, prefix: str = "") -> list[Entry]:
        root = self._at(prefix)
        found = self._listed_by_fsspec(root) if self._fsspec is not None else self._listed_by_arrow(root)
        entries = [Entry(posixpath.relpath(path, self.path or "/"), size) for path, size in found]
        return sorted((e for e in entries if _PART not in posixpath.basename(e.key)), key=lambda entry: entry.key)

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._fsspec is not None:
                self._fsspec.rm_file(self._at(key))  # `rm`, which pyarrow would call, takes a name for a pattern
            else:
                self.filesystem.delete_file(self._at(key))

    def delete_all(self, prefix: str) -> None:
        for entry in self.entries(prefix):
            self.delete(entry.key)
        if not self._whole_puts:
            with contextlib.suppress(FileNotFoundError):
                self.filesystem.delete_dir(self._at(prefix))

    def _at(self, key: str) -> str:
        return posixpath.join(self.path, own_key(key)) if key else self.path

    @contextlib.contextmanager
    def _put(self, key: str) -> Any:
        """A stream whose object appears under its name at the end, complete."""
        path = self._at(key)
        if self._whole_puts:
            with self.filesystem.open_output_stream(path, compression=None) as stream:
                yield stream
            return
        part = f"{path}{_PART}{uuid.uuid4().hex[:8]}"
        self.filesystem.create_dir(posixpath.dirname(path), recursive=True)
        try:
            with self.filesystem.open_output_stream(part, compression=None) as stream:
                yield stream
            self.filesystem.move(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self.filesystem.delete_file(part)
            raise

    def _listed_by_arrow(self, root: str) -> list[tuple[str, int]]:
        from pyarrow.fs import FileSelector, FileType

        infos = self.filesystem.get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
        if not infos and self._has_buckets:
            # A bucket that is not there has an empty listing too.
            bucket = root.strip("/").partition("/")[0]
            if self.filesystem.get_file_info(bucket).type == FileType.NotFound:
                raise missing_bucket(bucket)
        return [(info.path, info.size) for info in infos if info.type == FileType.File]

    def _listed_by_fsspec(self, root: str) -> list[tuple[str, int]]:
        """Directory by directory: `find` of fsspec passes over directories that it cannot list."""
        filesystem = self._fsspec
        assert filesystem is not None
        filesystem.invalidate_cache()
        if self._has_buckets:
            bucket = root.strip("/").partition("/")[0]
            if not filesystem.exists(bucket):
                raise missing_bucket(bucket)
        found: list[tuple[str, int]] = []
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
                    # A marker for an empty directory is an object too, and its name ends in a slash.
                    found += [(path, int(entry["size"] or 0))] if not path.endswith("/") else []
                elif path.rstrip("/") != directory.rstrip("/"):
                    ahead.append(path)
        stripped = str(filesystem._strip_protocol(root or "/")).rstrip("/")
        return [(root + path.removeprefix(stripped), size) for path, size in found]


def missing_bucket(bucket: str) -> OSError:
    # Not a FileNotFoundError: that is what the absence of one object is.
    return OSError(f"NoSuchBucket: there is no bucket {bucket!r}, or it may not be looked at")


def _tag(data: bytes) -> str:
    tally = Tally()
    tally.add(data)
    return tally.entry("").hash


def fsspec_behind(filesystem: Any) -> Any:
    """The filesystem of fsspec that one of pyarrow stands for; None where it is pyarrow's own."""
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    if isinstance(filesystem, PyFileSystem) and isinstance(filesystem.handler, FSSpecHandler):
        return filesystem.handler.fs
    return None


def _kind(filesystem: Any, fsspec_filesystem: Any) -> str:
    if fsspec_filesystem is None:
        return str(filesystem.type_name)
    protocol = fsspec_filesystem.protocol
    return str(protocol if isinstance(protocol, str) else protocol[0])
