"""From what a user calls `paths` to files: local ones and those of any store, of directories and of patterns.

Everything is looked at once, when the reader is called, so a path that leads nowhere is an error there and then. What
comes back is small, can be pickled, and is in the same order every time.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import unquote

import pyarrow as pa
from pyarrow.fs import FileType, LocalFileSystem

from paceline._storage.trouble import in_short
from paceline.data.places import MAGIC, Place, Resolver, bare, below, infos_at, matching, relative

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
"""By the end of a file's name: what its content is packed with."""

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class File:
    """One file, and how to get at it."""

    path: str
    """As its filesystem knows it."""
    size: int
    """Bytes; 0 where the filesystem does not tell."""
    place: Place
    name: str
    """As short as it can be told apart from the others: its path below the directory that was given."""
    partition: tuple[tuple[str, Any], ...] = ()
    """The columns that its directories give: `year=2024/` gives ("year", 2024)."""

    def __str__(self) -> str:
        """All of it, for messages."""
        return f"{self.place.scheme}{self.path}"

    @property
    def local(self) -> str | None:
        """Its path on this machine, if that is where it is."""
        return self.path if isinstance(self.place.filesystem, LocalFileSystem) else None

    @property
    def compression(self) -> str | None:
        return COMPRESSIONS.get(posixpath.splitext(self.path)[1].lower())

    def open(self) -> Any:
        """As it is, to read at any place: a `pyarrow.NativeFile`."""
        return self.place.filesystem.open_input_file(self.path)

    def stream(self) -> Any:
        """From beginning to end, unpacked where the name says that it is packed: a `pyarrow.NativeFile`."""
        return self.place.filesystem.open_input_stream(self.path, compression=self.compression)

    def read(self) -> bytes:
        """All of it, unpacked where the name says that it is packed."""
        with reading(self), self.stream() as stream:
            content: bytes = stream.read()
        return content


@contextlib.contextmanager
def reading(file: File, kind: str = "") -> Iterator[None]:
    """Whatever goes wrong in here is said with the file's name; `kind` is what the file should have been."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{file} is gone: {in_short(error)}") from error
    except OSError as error:
        if error.errno is not None:
            raise type(error)(error.errno, f"{file} cannot be read: {in_short(error)}") from error
        if not kind:
            raise OSError(f"{file} cannot be read: {in_short(error)}") from error
        # Not the disk's word, but that of a library which cannot make sense of what it read.
        raise ValueError(f"{file} cannot be read as {kind}: {in_short(error)}") from error
    except (ValueError, TypeError, KeyError, EOFError, pa.ArrowException) as error:
        as_kind = f" as {kind}" if kind else ""
        told = str(error) if type(error) is ValueError else _plainly(error)
        raise ValueError(f"{file} cannot be read{as_kind}: {told}") from error


def _plainly(error: Exception) -> str:
    return in_short(error).removeprefix(f"{type(error).__name__}: ")


def listed(
    paths: Paths,
    *,
    filesystem: Any = None,
    file_extensions: Sequence[str] | None = None,
    partitioning: Literal["hive"] | None = "hive",
    ignore_missing_paths: bool = False,
) -> tuple[File, ...]:
    """All files that `paths` stand for, in the order in which they were given, each directory sorted by path.

    A path is a file, a directory (everything below it, but for names that begin with `.` or `_`), or a pattern with
    `*`, `?`, `[...]` and `**`. `file_extensions` leaves out other files of directories and patterns; a file that is
    named is always taken.
    """
    given = _as_list(paths)
    extensions = _extensions(file_extensions)
    if partitioning not in ("hive", None):
        raise ValueError(f"partitioning={partitioning!r} must be 'hive' or None")
    if not isinstance(ignore_missing_paths, bool):
        raise ValueError(f"ignore_missing_paths={ignore_missing_paths!r} must be True or False")
    resolve = Resolver(filesystem)
    located = [resolve(path) for path in given]
    infos = infos_at(located)
    files: list[File] = []
    for text, (place, path), info in zip(given, located, infos, strict=True):
        found = _found(place, path, info, extensions)
        if not found and not ignore_missing_paths:
            raise _nothing(text, place, path, info, extensions)
        files += found
    if not files:
        shown = ", ".join(map(repr, given[:3])) + (", ..." if len(given) > 3 else "")
        raise FileNotFoundError(f"paths={shown}: none of them leads to a file")
    names = [file.name for file in files]
    if len(set(names)) < len(names):
        files = [replace(file, name=str(file)) for file in files]
    return _partitioned(files) if partitioning == "hive" else tuple(files)


def _as_list(paths: Paths) -> list[str]:
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    if not isinstance(paths, Sequence):
        raise ValueError(f"paths={paths!r} must be a path or a list of paths")
    if not paths:
        raise ValueError("paths=[] is empty: there must be at least one path")
    for path in paths:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise ValueError(f"paths has {path!r}: each must be a path, as text or as a pathlib.Path")
    return [os.fspath(path) for path in paths]


def _extensions(given: Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    if isinstance(given, str) or not all(isinstance(extension, str) for extension in given):
        raise ValueError(f"file_extensions={given!r} must be a list such as ['csv', 'csv.gz']")
    return tuple(f".{extension.lstrip('.').lower()}" for extension in given)


def _found(place: Place, path: str, info: Any, extensions: tuple[str, ...]) -> list[File]:
    if info.type == FileType.File:
        return [File(path, info.size or 0, place, posixpath.basename(path) or path)]
    if info.type == FileType.Directory:
        found = below(place, path)
        root = path
    elif MAGIC & set(path):
        root = posixpath.dirname(path[: min(path.index(sign) for sign in MAGIC & set(path))])
        parts = path[len(root) :].strip("/").split("/")
        is_there = not root or infos_at([(place, root)])[0].type == FileType.Directory
        found = matching(place, root, parts) if is_there else []
    else:
        return []
    wanted = [(path, size) for path, size in found if not extensions or path.lower().endswith(extensions)]
    return [File(path, size, place, relative(path, root)) for path, size in sorted(set(wanted))]


def _nothing(text: str, place: Place, path: str, info: Any, extensions: tuple[str, ...]) -> Exception:
    shown = bare(text)
    if info.type == FileType.NotFound and not MAGIC & set(path):
        return FileNotFoundError(f"paths={shown!r}: there is no file or directory {place.scheme}{path}")
    full = f"{place.scheme}{path}"
    what = f"the directory {full} has" if info.type == FileType.Directory else f"the pattern {full} finds"
    if extensions and (others := _found(place, path, info, ())):
        return FileNotFoundError(
            f"paths={shown!r}: {what} no file that ends in {' or '.join(extensions)}, but {len(others)} that "
            f"{'does' if len(others) == 1 else 'do'} not, such as {others[0].name}\n\n"
            "hint: file_extensions=None takes all files, file_extensions=['...'] others"
        )
    return FileNotFoundError(f"paths={shown!r}: {what} no file (names that begin with . or _ do not count)")


def _partitioned(files: Sequence[File]) -> tuple[File, ...]:
    """With the columns of `name=value` directories: numbers where all values of a name are."""
    found = [_pairs(file.path) for file in files]
    names = list(dict.fromkeys(name for pairs in found for name in pairs))
    if not names:
        return tuple(files)
    texts = {name: [pairs[name] for pairs in found if pairs.get(name) is not None] for name in names}
    whole = {name for name in names if texts[name] and all(_is_whole(str(text)) for text in texts[name])}

    def typed(name: str, text: str | None) -> Any:
        return int(text) if text is not None and name in whole else text

    return tuple(
        replace(file, partition=tuple((name, typed(name, pairs.get(name))) for name in names))
        for file, pairs in zip(files, found, strict=True)
    )


def _pairs(path: str) -> dict[str, str | None]:
    parts = (part.partition("=") for part in posixpath.dirname(path).split("/") if "=" in part)
    return {unquote(name): None if text == _NO_VALUE else unquote(text) for name, _, text in parts if name}


def _is_whole(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and -(2**63) <= int(text) < 2**63
