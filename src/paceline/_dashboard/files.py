"""Serves files of a run: only those that the run lists, and only from below its own directory.

A journal may name any path, and whoever writes a run may put links into it. So each part of a path is opened relative
to the one before, and never through a link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from paceline._dashboard.query_fields import RequestRefusedError
from paceline._view.model import Detail

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
        saved = f'attachment; filename="{self.name}"' if self.name else "inline"
        # Browsers do not display a sandboxed page that also sets an opener policy.
        opener = {"Cross-Origin-Opener-Policy": "unsafe-none"}
        return {"Content-Disposition": saved, "Content-Security-Policy": self.csp, **opener}


def find_delivery(detail: Detail, path: str) -> FileDelivery:
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


def open_run_file(home: RunLocation, path: str) -> BinaryIO:
    """Open a file below the run's directory, or an object below its prefix.

    Raises `RequestRefusedError` if the path leads out of the run or is not a file.
    """
    parts = path.split("/")
    if path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise RequestRefusedError(404, "this path leads out of the run")
    try:
        return _open_in_store(home, path) if home.address is not None else _open_on_disk(home.layout.root, parts)
    except (FileNotFoundError, NotADirectoryError):
        raise RequestRefusedError(404, "the file is not there any more") from None


def iter_file_chunks(file: BinaryIO) -> Generator[bytes, None, None]:
    with file:
        while data := file.read(_CHUNK):
            yield data


def _open_on_disk(root: Path, parts: list[str]) -> BinaryIO:
    held = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number, part in enumerate(parts, start=1):
            kind = os.O_NONBLOCK if number == len(parts) else os.O_DIRECTORY
            try:
                inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=held)
            except OSError as error:
                raise RequestRefusedError(404, "this is no file of the run") from error
            os.close(held)
            held = inner
        if not stat.S_ISREG(os.fstat(held).st_mode):
            raise RequestRefusedError(404, "this is no file of the run")
        return os.fdopen(held, "rb")
    except BaseException:
        os.close(held)
        raise


def _open_in_store(home: RunLocation, path: str) -> BinaryIO:
    root, filesystem = home.open_run_store_for_reading().locate_run()
    stream: Any = filesystem.open_input_stream(f"{root.rstrip('/')}/{path}")
    return stream  # type: ignore[no-any-return]


def _to_header_name(path: str) -> str:
    """Return a file name that a header can hold."""
    name = path.rpartition("/")[2]
    return "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in name)[:150]
