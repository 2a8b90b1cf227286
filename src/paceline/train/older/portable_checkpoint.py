"""Conversions of a checkpoint in Ray 1.x: to bytes, to a URI, to its internal representation.

The bytes are an archive of the checkpoint's files. They contain no pickle of ours. Unpacking accepts only plain files,
and only inside the target directory.
"""

from __future__ import annotations

import atexit
import io
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Self

from paceline._storage.address import resolve_filesystem
from paceline._storage.run_location import is_remote


class PortableCheckpointMixin:
    """Methods of `Checkpoint` that older scripts call."""

    def to_bytes(self: Any) -> bytes:
        """Return the files of the checkpoint as one bytes object, for `from_bytes`."""
        data = io.BytesIO()
        with self.as_directory() as directory, tarfile.open(fileobj=data, mode="w") as archive:
            for path in sorted(Path(directory).rglob("*")):
                if path.is_file():
                    archive.add(path, path.relative_to(directory).as_posix(), recursive=False)
        return data.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Restore a checkpoint from `to_bytes`, in a directory that lasts as long as this process."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes from to_bytes(), got a {type(data).__name__}")
        directory = tempfile.mkdtemp(prefix="paceline-checkpoint-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
                archive.extractall(directory, filter="data")
        except (tarfile.TarError, OSError) as problem:
            shutil.rmtree(directory, ignore_errors=True)
            raise ValueError(f"data must be the bytes of a checkpoint: {problem}") from problem
        return cls(directory)  # type: ignore[call-arg]

    @classmethod
    def from_uri(cls, uri: str) -> Self:
        """The checkpoint at a URI: `s3://bucket/path`, `gs://...`, `file:///path`."""
        if not isinstance(uri, str):
            raise TypeError(f"uri must be a string, got {uri!r}")
        local = uri.removeprefix("file://")
        if not is_remote(local):
            return cls(Path(local).absolute())  # type: ignore[call-arg]
        filesystem, path = resolve_filesystem(uri, "uri")
        return cls(path, filesystem)  # type: ignore[call-arg]

    def to_uri(self: Any, uri: str) -> str:
        """Copy the files to a URI, and return it."""
        local = uri.removeprefix("file://")
        if not is_remote(local):
            self.to_directory(local)
            return uri
        from pyarrow.fs import LocalFileSystem, copy_files

        filesystem, path = resolve_filesystem(uri, "uri")
        with self.as_directory() as directory:
            filesystem.create_dir(path, recursive=True)
            copy_files(directory, path, source_filesystem=LocalFileSystem(), destination_filesystem=filesystem)
        return uri

    @property
    def uri(self: Any) -> str | None:
        """The URI of the files; None for a state that is only in memory."""
        if self._path is None:
            return None
        if self.is_local:
            return Path(self._path).absolute().as_uri()
        name = self.filesystem.type_name
        return f"{name}://{self._path}"

    def get_internal_representation(self: Any) -> tuple[str, Any]:
        """Return its content: `("dict", state)`, `("local_path", path)`, or `("uri", uri)`."""
        if self.state is not None:
            return "dict", dict(self.state)
        return ("local_path", self._path) if self.is_local else ("uri", self.uri)
