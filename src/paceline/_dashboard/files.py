"""Serves files of a run: only those that the run lists, and only from below its own directory.

A journal may name any path, and whoever writes a run may put links into it. So each part of a path is opened relative
to the one before, and never through a link.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import stat
from collections.abc import Generator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from paceline._dashboard.query_fields import RequestRefusedError
from paceline._view.model import RunSnapshot

if TYPE_CHECKING:
    from paceline._storage.run_location import RunLocation

_CHUNK = 1 << 20
FLAME_CSP = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
)
"""A flame graph is a page from the run's directory. It may run its own scripts, and reach nothing."""


@dataclass(frozen=True)
class FileDelivery:
    """How a file is sent."""

    media_type: str
    name: str
    """File name of the download; empty if the file is displayed instead."""
    csp: str = "sandbox; default-src 'none'"

    def headers(self) -> dict[str, str]:
        return {
            "Content-Disposition": f'attachment; filename="{self.name}"' if self.name else "inline",
            "Content-Security-Policy": self.csp,
            # Browsers do not display a sandboxed page that also sets an opener policy.
            "Cross-Origin-Opener-Policy": "unsafe-none",
        }


def find_delivery(detail: RunSnapshot, path: str) -> FileDelivery:
    """Return how a file is sent; raise `RequestRefusedError` if the run does not list it."""
    kinds = {file.path: file.kind for file in detail.files}
    kinds |= {hang.stacks: "stacks" for attempt in detail.attempts for hang in attempt.hangs if hang.stacks}
    kind = kinds.get(path)
    if kind is None:
        raise RequestRefusedError(404, "the run lists no such file")
    suffix = Path(path).suffix
    if kind == "flame" and suffix in (".html", ".svg"):
        return FileDelivery("text/html; charset=utf-8" if suffix == ".html" else "image/svg+xml", "", FLAME_CSP)
    if kind == "stacks":
        return FileDelivery("text/plain; charset=utf-8", "")
    return FileDelivery("application/octet-stream", _to_header_name(path))


def open_run_file(location: RunLocation, path: str) -> BinaryIO:
    """Open a file or object below the run; `RequestRefusedError` if the path leads out of it or is not a file."""
    parts = path.split("/")
    if path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise RequestRefusedError(404, "this path is outside the run")
    try:
        if location.address is None:
            return _open_on_disk(location.layout.root, parts)
        root, filesystem = location.open_run_store_for_reading().locate_run()
        stream: BinaryIO = filesystem.open_input_stream(f"{root.rstrip('/')}/{path}")
        return stream
    except (FileNotFoundError, NotADirectoryError):
        raise RequestRefusedError(404, "the file no longer exists") from None


def iter_file_chunks(file: BinaryIO) -> Generator[bytes, None, None]:
    with file:
        while data := file.read(_CHUNK):
            yield data


def _open_on_disk(root: Path, parts: list[str]) -> BinaryIO:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for number, part in enumerate(parts, start=1):
            kind = os.O_NONBLOCK if number == len(parts) else os.O_DIRECTORY
            try:
                inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | kind, dir_fd=descriptor)
            except OSError as error:
                raise RequestRefusedError(404, "not a file of the run") from error
            os.close(descriptor)
            descriptor = inner
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RequestRefusedError(404, "not a file of the run")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _to_header_name(path: str) -> str:
    """Return a file name that a header can hold."""
    name = path.rpartition("/")[2]
    return "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in name)[:150]


_MEDIA_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
}
PAGE_FILE_NAMES = tuple(_MEDIA_TYPES)


@dataclass(frozen=True)
class PageFile:
    data: bytes
    media_type: str

    @property
    def gzip_data(self) -> bytes:
        return _gzip(self.data)

    @property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.data).hexdigest()[:24]}"'


@functools.lru_cache(maxsize=len(PAGE_FILE_NAMES))
def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, 6, mtime=0)


def load_page_file(name: str) -> PageFile:
    return PageFile((resources.files(__package__) / "page" / name).read_bytes(), _MEDIA_TYPES[name])
