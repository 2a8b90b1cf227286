"""Where a run is kept when that is not a disk of this machine: what every store can do.

A key is a posix path relative to the store's root. An object is put whole or not at all; there are no directories and
no renames. Where a store has conditional puts, `create` and `replace` decide between two writers; where it has none
they look first and write then, which `conditional` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from paceline._engine.messages import FileEntry

CHUNK = 8 << 20

Moved = Callable[[int], None]
"""Told of bytes as they go by, so that somebody can see that a transfer is alive."""


def unwatched(num_bytes: int) -> None:
    """For transfers that nobody watches."""


@dataclass(frozen=True)
class Entry:
    key: str
    size: int


class Store(Protocol):
    @property
    def uri(self) -> str:
        """Where it is, for people: no credentials and no options."""
        ...

    @property
    def conditional(self) -> bool: ...
    @property
    def filesystem(self) -> Any:
        """The `pyarrow.fs.FileSystem` on which `path` leads to the same objects."""
        ...

    @property
    def path(self) -> str: ...
    def read(self, key: str) -> bytes:
        """`FileNotFoundError` where there is no such object."""
        ...

    def read_tagged(self, key: str) -> tuple[bytes, str]:
        """Also the tag that `replace` wants: it changes whenever the object does."""
        ...

    def write(self, key: str, data: bytes) -> None: ...
    def create(self, key: str, data: bytes) -> bool:
        """Put an object where there is none; False where there is one."""
        ...

    def replace(self, key: str, data: bytes, tag: str) -> str | None:
        """Put an object in place of the one with this tag, and return its own; None where another is there.

        A tag may be a hash of the contents. So each put has to differ from the last, by a time or a random word in it:
        the same bytes again would leave the tag as it was, and a second writer would win with it too.
        """
        ...

    def upload(self, source: Path, key: str, moved: Moved = unwatched) -> FileEntry:
        """Put a file, whatever its size, and hash it on the way."""
        ...

    def download(self, key: str, target: Path, moved: Moved = unwatched) -> FileEntry:
        """Get an object into a file and hash it on the way."""
        ...

    def entries(self, prefix: str = "") -> list[Entry]:
        """Everything below a prefix, in the order of keys. Fails rather than leave something out."""
        ...

    def delete(self, key: str) -> None:
        """No error where there is none."""
        ...

    def delete_all(self, prefix: str) -> None: ...


def own_key(key: str) -> str:
    """The key, if it stays below the store's root: joined to a path, one that does not would reach other files."""
    if key.startswith("/") or "\0" in key or any(part in (".", "..") for part in key.split("/")):
        raise ValueError(f"{key!r} is not a key: it leads out of the store")
    return key


class Tally:
    """Size and hash of what has gone by."""

    def __init__(self, moved: Moved = unwatched) -> None:
        import xxhash

        self._digest = xxhash.xxh3_128()
        self._moved = moved
        self.size = 0

    def add(self, chunk: Any) -> None:
        self._digest.update(chunk)
        self.size += len(chunk)
        self._moved(len(chunk))

    def entry(self, name: str) -> FileEntry:
        return FileEntry(name, self.size, self._digest.hexdigest())


def chunks(file: BinaryIO, tally: Tally, size: int = CHUNK) -> Iterator[bytes]:
    """A file piece by piece, each a buffer of its own: an upload may still hold the last one."""
    while chunk := file.read(size):
        tally.add(chunk)
        yield chunk
