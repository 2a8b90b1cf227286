"""Resolves `paths` arguments to files: local and remote files, directories and patterns.

Everything is resolved once, when the reader is called, so a bad path fails immediately. The result is small, picklable,
and in the same order every time.
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

from paceline._storage.store_errors import summarize_error
from paceline.data.filesystems import (
    MAGIC,
    FilesystemHandle,
    PathResolver,
    find_matching,
    get_file_infos,
    list_recursively,
    relative_path,
    strip_credentials,
)

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
"""Compression by file name suffix."""

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class InputFile:
    """One file and how to access it."""

    path: str
    """The path on its filesystem."""
    size: int
    """Size in bytes; 0 if the filesystem does not report it."""
    fs_handle: FilesystemHandle
    name: str
    """A short unique name: the path relative to the given directory."""
    partition: tuple[tuple[str, Any], ...] = ()
    """Columns derived from directory names: `year=2024/` gives ("year", 2024)."""

    def __str__(self) -> str:
        """Return the full address, for messages."""
        return f"{self.fs_handle.scheme}{self.path}"

    @property
    def local_path(self) -> str | None:
        """The path on this machine, if the file is local."""
        return self.path if isinstance(self.fs_handle.filesystem, LocalFileSystem) else None

    @property
    def compression(self) -> str | None:
        return COMPRESSIONS.get(posixpath.splitext(self.path)[1].lower())

    def open(self) -> Any:
        """Open the raw file for random access, as a `pyarrow.NativeFile`."""
        return self.fs_handle.filesystem.open_input_file(self.path)

    def stream(self) -> Any:
        """Open the file for sequential reading, decompressed by its suffix, as a `pyarrow.NativeFile`."""
        return self.fs_handle.filesystem.open_input_stream(self.path, compression=self.compression)

    def read(self) -> bytes:
        """Read the whole file, decompressed by its suffix."""
        with explain_read_errors(self), self.stream() as stream:
            content: bytes = stream.read()
        return content


@contextlib.contextmanager
def explain_read_errors(file: InputFile, kind: str = "") -> Iterator[None]:
    """Add the file's name to any error raised inside. `kind` is the expected format."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{file} is gone: {summarize_error(error)}") from error
    except OSError as error:
        if error.errno is not None:
            raise type(error)(error.errno, f"{file} cannot be read: {summarize_error(error)}") from error
        if not kind:
            raise OSError(f"{file} cannot be read: {summarize_error(error)}") from error
        # Not a disk error: a library could not parse the content.
        raise ValueError(f"{file} cannot be read as {kind}: {summarize_error(error)}") from error
    except (ValueError, TypeError, KeyError, EOFError, pa.ArrowException) as error:
        as_kind = f" as {kind}" if kind else ""
        told = str(error) if type(error) is ValueError else _message_of(error)
        raise ValueError(f"{file} cannot be read{as_kind}: {told}") from error


def _message_of(error: Exception) -> str:
    return summarize_error(error).removeprefix(f"{type(error).__name__}: ")


def list_files(
    paths: Paths,
    *,
    filesystem: Any = None,
    file_extensions: Sequence[str] | None = None,
    partitioning: Literal["hive"] | None = "hive",
    ignore_missing_paths: bool = False,
) -> tuple[InputFile, ...]:
    """List all files of `paths`, in the given order, with each directory sorted by path.

    A path is a file, a directory (everything below it, except names that begin with `.` or `_`), or a pattern with `*`,
    `?`, `[...]` and `**`. `file_extensions` filters the files of directories and patterns; a file given by name is
    always included.
    """
    given = _as_list(paths)
    extensions = _parse_extensions(file_extensions)
    if partitioning not in ("hive", None):
        raise ValueError(f"partitioning={partitioning!r} must be 'hive' or None")
    if not isinstance(ignore_missing_paths, bool):
        raise ValueError(f"ignore_missing_paths={ignore_missing_paths!r} must be True or False")
    resolve = PathResolver(filesystem)
    located = [resolve(path) for path in given]
    infos = get_file_infos(located)
    files: list[InputFile] = []
    for text, (place, path), info in zip(given, located, infos, strict=True):
        found = _find_files(place, path, info, extensions)
        if not found and not ignore_missing_paths:
            raise _no_files_error(text, place, path, info, extensions)
        files += found
    if not files:
        shown = ", ".join(map(repr, given[:3])) + (", ..." if len(given) > 3 else "")
        raise FileNotFoundError(f"paths={shown}: none of them leads to a file")
    names = [file.name for file in files]
    if len(set(names)) < len(names):
        files = [replace(file, name=str(file)) for file in files]
    return _with_partitions(files) if partitioning == "hive" else tuple(files)


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


def _parse_extensions(given: Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    if isinstance(given, str) or not all(isinstance(extension, str) for extension in given):
        raise ValueError(f"file_extensions={given!r} must be a list such as ['csv', 'csv.gz']")
    return tuple(f".{extension.lstrip('.').lower()}" for extension in given)


def _find_files(place: FilesystemHandle, path: str, info: Any, extensions: tuple[str, ...]) -> list[InputFile]:
    if info.type == FileType.File:
        return [InputFile(path, info.size or 0, place, posixpath.basename(path) or path)]
    if info.type == FileType.Directory:
        found = list_recursively(place, path)
        root = path
    elif MAGIC & set(path):
        root = posixpath.dirname(path[: min(path.index(sign) for sign in MAGIC & set(path))])
        parts = path[len(root) :].strip("/").split("/")
        is_there = not root or get_file_infos([(place, root)])[0].type == FileType.Directory
        found = find_matching(place, root, parts) if is_there else []
    else:
        return []
    wanted = [(path, size) for path, size in found if not extensions or path.lower().endswith(extensions)]
    return [InputFile(path, size, place, relative_path(path, root)) for path, size in sorted(set(wanted))]


def _no_files_error(text: str, place: FilesystemHandle, path: str, info: Any, extensions: tuple[str, ...]) -> Exception:
    shown = strip_credentials(text)
    if info.type == FileType.NotFound and not MAGIC & set(path):
        return FileNotFoundError(f"paths={shown!r}: there is no file or directory {place.scheme}{path}")
    full = f"{place.scheme}{path}"
    what = f"the directory {full} has" if info.type == FileType.Directory else f"the pattern {full} finds"
    if extensions and (others := _find_files(place, path, info, ())):
        return FileNotFoundError(
            f"paths={shown!r}: {what} no file that ends in {' or '.join(extensions)}, but {len(others)} that "
            f"{'does' if len(others) == 1 else 'do'} not, such as {others[0].name}\n\n"
            "hint: file_extensions=None takes all files, file_extensions=['...'] others"
        )
    return FileNotFoundError(f"paths={shown!r}: {what} no file (names that begin with . or _ do not count)")


def _with_partitions(files: Sequence[InputFile]) -> tuple[InputFile, ...]:
    """Add the columns of `name=value` directories. They are numbers if all values of a name are numbers."""
    found = [_parse_partition_values(file.path) for file in files]
    names = list(dict.fromkeys(name for pairs in found for name in pairs))
    if not names:
        return tuple(files)
    texts = {name: [pairs[name] for pairs in found if pairs.get(name) is not None] for name in names}
    whole = {name for name in names if texts[name] and all(_is_int64_text(str(text)) for text in texts[name])}

    def parse_value(name: str, text: str | None) -> Any:
        return int(text) if text is not None and name in whole else text

    return tuple(
        replace(file, partition=tuple((name, parse_value(name, pairs.get(name))) for name in names))
        for file, pairs in zip(files, found, strict=True)
    )


def _parse_partition_values(path: str) -> dict[str, str | None]:
    parts = (part.partition("=") for part in posixpath.dirname(path).split("/") if "=" in part)
    return {unquote(name): None if text == _NO_VALUE else unquote(text) for name, _, text in parts if name}


def _is_int64_text(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and -(2**63) <= int(text) < 2**63
