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

from paceline._core.arguments import bad_value, check_bool, check_choice
from paceline._storage.store_errors import summarize_error
from paceline.data.sources import filesystems

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class InputFile:
    """One file and how to access it."""

    path: str
    size: int
    """Size in bytes; 0 if the filesystem does not report it."""
    fs_handle: filesystems.FilesystemHandle
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
        raise FileNotFoundError(f"{file} no longer exists: {summarize_error(error)}") from error
    except OSError as error:
        if error.errno is not None:
            raise type(error)(error.errno, f"cannot read {file}: {summarize_error(error)}") from error
        if not kind:
            raise OSError(f"cannot read {file}: {summarize_error(error)}") from error
        # Not a disk error: a library could not parse the content.
        raise ValueError(f"cannot read {file} as {kind}: {summarize_error(error)}") from error
    except (ValueError, TypeError, KeyError, EOFError, pa.ArrowException) as error:
        as_kind = f" as {kind}" if kind else ""
        text = summarize_error(error).removeprefix(f"{type(error).__name__}: ")
        raise ValueError(f"cannot read {file}{as_kind}: {error if type(error) is ValueError else text}") from error


def list_files(
    paths: Paths,
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
    texts = _as_list(paths)
    extensions = _parse_extensions(file_extensions)
    check_choice("partitioning", partitioning, ("hive", None))
    check_bool("ignore_missing_paths", ignore_missing_paths)
    resolve = filesystems.PathResolver(filesystem)
    located = [resolve(path) for path in texts]
    infos = filesystems.get_file_infos(located)
    files: list[InputFile] = []
    for text, (handle, path), info in zip(texts, located, infos, strict=True):
        found = _find_files(handle, path, info, extensions)
        if not found and not ignore_missing_paths:
            raise _no_files_error(text, handle, path, info, extensions)
        files += found
    if not files:
        listed = ", ".join(map(repr, texts[:3])) + (", ..." if len(texts) > 3 else "")
        raise FileNotFoundError(f"no files found in {listed}")
    names = [file.name for file in files]
    if len(set(names)) < len(names):
        files = [replace(file, name=str(file)) for file in files]
    return _with_partitions(files) if partitioning == "hive" else tuple(files)


def _as_list(paths: Paths) -> list[str]:
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    if not isinstance(paths, Sequence):
        raise bad_value("paths", "a path or a list of paths", paths)
    if not paths:
        raise bad_value("paths", "at least one path", paths)
    for path in paths:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise bad_value("each of paths", "a path, as text or as a pathlib.Path", path)
    return [os.fspath(path) for path in paths]


def _parse_extensions(extensions: Sequence[str] | None) -> tuple[str, ...]:
    if extensions is None:
        return ()
    if isinstance(extensions, str) or not all(isinstance(each, str) for each in extensions):
        raise bad_value("file_extensions", "a list such as ['csv', 'csv.gz']", extensions)
    return tuple(f".{each.lstrip('.').lower()}" for each in extensions)


def _find_files(
    handle: filesystems.FilesystemHandle, path: str, info: Any, extensions: tuple[str, ...]
) -> list[InputFile]:
    if info.type == FileType.File:
        return [InputFile(path, info.size or 0, handle, posixpath.basename(path) or path)]
    if info.type == FileType.Directory:
        found = filesystems.list_recursively(handle, path)
        root = path
    elif filesystems.MAGIC & set(path):
        root = posixpath.dirname(path[: min(path.index(sign) for sign in filesystems.MAGIC & set(path))])
        parts = path[len(root) :].strip("/").split("/")
        is_there = not root or filesystems.get_file_infos([(handle, root)])[0].type == FileType.Directory
        found = filesystems.find_matching(handle, root, parts) if is_there else []
    else:
        return []
    matching = [(path, size) for path, size in found if not extensions or path.lower().endswith(extensions)]
    return [
        InputFile(path, size, handle, filesystems.relative_path(path, root)) for path, size in sorted(set(matching))
    ]


def _no_files_error(
    text: str, handle: filesystems.FilesystemHandle, path: str, info: Any, extensions: tuple[str, ...]
) -> Exception:
    shown = filesystems.strip_credentials(text)
    if info.type == FileType.NotFound and not filesystems.MAGIC & set(path):
        return FileNotFoundError(f"paths={shown!r}: no file or directory {handle.scheme}{path}")
    full = f"{handle.scheme}{path}"
    place = f"in the directory {full}" if info.type == FileType.Directory else f"matches the pattern {full}"
    if extensions and (other_files := _find_files(handle, path, info, ())):
        return FileNotFoundError(
            f"paths={shown!r}: no file ending in {' or '.join(extensions)} {place}, only {len(other_files)} other"
            f"{'s' * (len(other_files) > 1)} such as {other_files[0].name}\n\n"
            "hint: set file_extensions to other endings, or to None for all files"
        )
    return FileNotFoundError(f"paths={shown!r}: no file {place} (names that begin with . or _ do not count)")


def _with_partitions(files: Sequence[InputFile]) -> tuple[InputFile, ...]:
    """Add the columns of `name=value` directories. They are numbers if all values of a name are numbers."""
    found = [_parse_partition_values(file.path) for file in files]
    names = list(dict.fromkeys(name for pairs in found for name in pairs))
    if not names:
        return tuple(files)
    texts = {name: [pairs[name] for pairs in found if pairs.get(name) is not None] for name in names}
    integers = {name for name in names if texts[name] and all(_is_int64_text(str(text)) for text in texts[name])}

    def parse_value(name: str, text: str | None) -> Any:
        return int(text) if text is not None and name in integers else text

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
