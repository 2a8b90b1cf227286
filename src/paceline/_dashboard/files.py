"""Files of a run, handed out: only such as the run itself lists, and only from below its own directory.

A journal may name any path, and whoever writes a run may put links into it. So each part of a path is opened from the
one before, and none of them through a link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from paceline._dashboard.asked import Refused
from paceline._view.model import Detail

if TYPE_CHECKING:
    from paceline._storage.home import Home

_CHUNK = 1 << 20
FLAME_CSP = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
)
"""A flame graph is a page from the run's directory. It may move on its own, and reach nothing."""


@dataclass(frozen=True)
class Offered:
    """How a file is sent."""

    media_type: str
    name: str
    """Empty: shown, not saved."""
    csp: str = "sandbox; default-src 'none'"

    def headers(self) -> dict[str, str]:
        saved = f'attachment; filename="{self.name}"' if self.name else "inline"
        # A page in a sandbox that also has a say about who opened it is not shown by browsers.
        opener = {"Cross-Origin-Opener-Policy": "unsafe-none"}
        return {"Content-Disposition": saved, "Content-Security-Policy": self.csp, **opener}


def offered(detail: Detail, path: str) -> Offered:
    """Whether the run lists this file, and how it is sent; `Refused` where it does not."""
    kinds = {file.path: file.kind for file in detail.files}
    kinds |= {hang.stacks: "stacks" for attempt in detail.attempts for hang in attempt.hangs if hang.stacks}
    kind = kinds.get(path)
    if kind is None:
        raise Refused(404, "the run lists no such file")
    suffix = Path(path).suffix
    if kind == "flame" and suffix in (".html", ".svg"):
        return Offered("text/html; charset=utf-8" if suffix == ".html" else "image/svg+xml", "", FLAME_CSP)
    if kind == "stacks":
        return Offered("text/plain; charset=utf-8", "")
    return Offered("application/octet-stream", _plain_name(path))


def opened(home: Home, path: str) -> BinaryIO:
    """A file below the run's directory, or object below its prefix. `Refused` where it leads out, or to no file."""
    parts = path.split("/")
    if path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise Refused(404, "this path leads out of the run")
    try:
        return _in_store(home, path) if home.address is not None else _on_disk(home.layout.root, parts)
    except (FileNotFoundError, NotADirectoryError):
        raise Refused(404, "the file is not there any more") from None


def chunks(file: BinaryIO) -> Generator[bytes, None, None]:
    with file:
        while data := file.read(_CHUNK):
            yield data


def _on_disk(root: Path, parts: list[str]) -> BinaryIO:
    held = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number, part in enumerate(parts, start=1):
            kind = os.O_NONBLOCK if number == len(parts) else os.O_DIRECTORY
            try:
                inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind, dir_fd=held)
            except OSError as error:
                raise Refused(404, "this is no file of the run") from error
            os.close(held)
            held = inner
        if not stat.S_ISREG(os.fstat(held).st_mode):
            raise Refused(404, "this is no file of the run")
        return os.fdopen(held, "rb")
    except BaseException:
        os.close(held)
        raise


def _in_store(home: Home, path: str) -> BinaryIO:
    root, filesystem = home.depot_to_read().root()
    stream: Any = filesystem.open_input_stream(f"{root.rstrip('/')}/{path}")
    return stream  # type: ignore[no-any-return]


def _plain_name(path: str) -> str:
    """Of what a header can hold."""
    name = path.rpartition("/")[2]
    return "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in name)[:150]
