"""Resolves `paths` arguments to files: local and remote files, directories and patterns.

Everything is resolved once, when the reader is called, so a bad path fails immediately. The result is small, picklable,
and in the same order every time.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from paceline._core.arguments import bad_value, check_bool, check_callable, check_choice
from paceline._core.system import make_absolute
from paceline._storage.address import resolve_filesystem, to_arrow_filesystem
from paceline._storage.arrow_store import unwrap_fsspec
from paceline._storage.store_errors import summarize_error
from paceline.data.datasource.partitioning import Partitioning, PartitionStyle, PathPartitionParser
from paceline.data.open_args import DETECT

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}

_MAGIC = frozenset("*?[")
"""A path with one of these characters may be a pattern."""


@dataclass(frozen=True)
class InputFile:
    path: str
    size: int
    """Size in bytes; 0 if the filesystem does not report it."""
    fs_handle: FilesystemHandle
    name: str
    """A short unique name: the path relative to the given directory."""
    partition: tuple[tuple[str, Any], ...] = ()
    """Columns derived from directory names: `year=2024/` gives ("year", 2024)."""
    open_args: tuple[tuple[str, Any], ...] = ()
    """The user's `arrow_open_stream_args`."""

    def __str__(self) -> str:
        return f"{self.fs_handle.scheme}{self.path}"

    @property
    def local_path(self) -> str | None:
        is_local = isinstance(self.fs_handle.filesystem, LocalFileSystem)
        return self.path if is_local and not self.is_packed else None

    @property
    def is_packed(self) -> bool:
        """Whether the user says that the whole file is compressed."""
        return dict(self.open_args).get("compression", DETECT) not in (DETECT, None)

    @property
    def compression(self) -> str | None:
        chosen: str | None = dict(self.open_args).get("compression", DETECT)
        if chosen != DETECT:
            return chosen
        return COMPRESSIONS.get(posixpath.splitext(self.path)[1].lower())

    def open(self) -> Any:
        """Open the raw file for random access, as a `pyarrow.NativeFile`."""
        if self.is_packed:
            return pa.BufferReader(self.read())
        return self.fs_handle.filesystem.open_input_file(self.path)

    def stream(self) -> Any:
        """Open the file for sequential reading, decompressed by its suffix, as a `pyarrow.NativeFile`."""
        size = dict(self.open_args).get("buffer_size")
        return self.fs_handle.filesystem.open_input_stream(self.path, compression=self.compression, buffer_size=size)

    def read(self) -> bytes:
        with explain_read_errors(self), self.stream() as stream:
            content: bytes = stream.read()
        return content


class InvalidContentError(ValueError):
    """The content of a file is invalid; the message is shown without the exception type."""


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
        is_ours = type(error) is ValueError or isinstance(error, InvalidContentError)
        text = error if is_ours else summarize_error(error).removeprefix(f"{type(error).__name__}: ")
        raise ValueError(f"cannot read {file}{as_kind}: {text}") from error


def list_files(
    paths: Paths,
    filesystem: Any = None,
    file_extensions: Sequence[str] | None = None,
    partitioning: Partitioning | Literal["hive"] | None = "hive",
    ignore_missing_paths: bool = False,
    partition_filter: Callable[[list[str]], Sequence[str]] | None = None,
    open_args: Mapping[str, Any] | None = None,
    skip_paths: Paths | None = None,
) -> tuple[InputFile, ...]:
    """List all files of `paths`, in the given order, with each directory sorted by path.

    A path is a file, a directory (everything below it, except names that begin with `.` or `_`), or a pattern with `*`,
    `?`, `[...]` and `**`. `file_extensions` filters the files of directories and patterns; a file given by name is
    always included.
    """
    texts = _as_list(paths)
    extensions = _parse_extensions(file_extensions)
    if not isinstance(partitioning, Partitioning):
        check_choice("partitioning", partitioning, ("hive", None), hint="or a Partitioning(style='dir', ...)")
    check_callable("partition_filter", partition_filter, optional=True)
    check_bool("ignore_missing_paths", ignore_missing_paths)
    resolve = PathResolver(filesystem)
    located = [resolve(path) for path in texts]
    infos = _get_file_infos(located)
    files: list[InputFile] = []
    for text, (handle, path), info in zip(texts, located, infos, strict=True):
        matches = _find_files(handle, path, info, extensions)
        if not matches and not ignore_missing_paths:
            raise _no_files_error(text, handle, path, info, extensions)
        files += matches
    if not files:
        listed = ", ".join(map(repr, texts[:3])) + (", ..." if len(texts) > 3 else "")
        raise FileNotFoundError(f"no files found in {listed}")
    if skip_paths is not None:
        skipped = {path for _, path in map(resolve, _as_list(skip_paths, "skip_paths"))}
        files = [file for file in files if skipped.isdisjoint(_list_parents(file.path))]
        if not files:
            raise FileNotFoundError(f"skip_paths leaves no file of {texts[0]!r}")
    names = [file.name for file in files]
    if len(set(names)) < len(names):
        files = [replace(file, name=str(file)) for file in files]
    if partition_filter is not None:
        kept = {*partition_filter([file.path for file in files])}
        if not (files := [file for file in files if file.path in kept]):
            raise FileNotFoundError(f"partition_filter keeps none of the {len(names)} files of {texts[0]!r}")
    if open_args:
        files = [replace(file, open_args=tuple(open_args.items())) for file in files]
    if partitioning is None:
        return tuple(files)
    how = Partitioning() if isinstance(partitioning, str) else partitioning
    if how.style is PartitionStyle.DIRECTORY and how.base_dir is None:
        if len(located) > 1 or infos[0].type != FileType.Directory:
            raise bad_value("base_dir of partitioning", "a directory, as paths is not a single one", None)
        how = replace(how, base_dir=located[0][1])
    return _with_partitions(files, how)


def _list_parents(path: str) -> list[str]:
    """The path itself and all directories above it."""
    return [path, *map(str, PurePosixPath(path).parents)]


def _as_list(paths: Paths, name: str = "paths") -> list[str]:
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    if not isinstance(paths, Sequence):
        raise bad_value(name, "a path or a list of paths", paths)
    if not paths:
        raise bad_value(name, "at least one path", paths)
    for path in paths:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise bad_value(f"each of {name}", "a path, as text or as a pathlib.Path", path)
    return [os.fspath(path) for path in paths]


def _parse_extensions(extensions: Sequence[str] | None) -> tuple[str, ...]:
    if extensions is None:
        return ()
    if isinstance(extensions, str) or not all(isinstance(each, str) for each in extensions):
        raise bad_value("file_extensions", "a list such as ['csv', 'csv.gz']", extensions)
    return tuple(f".{each.lstrip('.').lower()}" for each in extensions)


def _find_files(handle: FilesystemHandle, path: str, info: Any, extensions: tuple[str, ...]) -> list[InputFile]:
    if info.type == FileType.File:
        return [InputFile(path, info.size or 0, handle, posixpath.basename(path) or path)]
    if info.type == FileType.Directory:
        candidates = _list_recursively(handle, path)
        root = path
    elif _MAGIC & set(path):
        root = posixpath.dirname(path[: min(path.index(sign) for sign in _MAGIC & set(path))])
        parts = path[len(root) :].strip("/").split("/")
        is_there = not root or _get_file_infos([(handle, root)])[0].type == FileType.Directory
        candidates = _find_matching(handle, root, parts) if is_there else []
    else:
        return []
    matching = [(path, size) for path, size in candidates if not extensions or path.lower().endswith(extensions)]
    return [InputFile(path, size, handle, _relative_path(path, root)) for path, size in sorted(set(matching))]


def _no_files_error(
    text: str, handle: FilesystemHandle, path: str, info: Any, extensions: tuple[str, ...]
) -> Exception:
    shown = _strip_credentials(text)
    if info.type == FileType.NotFound and not _MAGIC & set(path):
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


def _with_partitions(files: Sequence[InputFile], partitioning: Partitioning) -> tuple[InputFile, ...]:
    """Add the columns of directories. Without a type of their own, they are numbers if all of a name are."""
    parser = PathPartitionParser(partitioning)
    values_by_file = [parser.parse_texts(file.path) for file in files]
    names = list(dict.fromkeys(name for pairs in values_by_file for name in pairs))
    if not names:
        return tuple(files)
    typed = [parser(file.path) for file in files]
    texts = {name: [pairs[name] for pairs in values_by_file if pairs.get(name) is not None] for name in names}
    integers = {name for name in names if texts[name] and all(_is_int64_text(str(text)) for text in texts[name])}

    def parse_value(name: str, value: Any) -> Any:
        return int(value) if value is not None and name in integers - {*(partitioning.field_types or ())} else value

    return tuple(
        replace(file, partition=tuple((name, parse_value(name, pairs.get(name))) for name in names))
        for file, pairs in zip(files, typed, strict=True)
    )


def _is_int64_text(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and -(2**63) <= int(text) < 2**63


@dataclass(frozen=True)
class FilesystemHandle:
    """A filesystem. Each one exists once per process, so that its connections are reused."""

    filesystem: FileSystem
    scheme: str
    """Prefix of paths in messages: `s3://`; empty for local files."""

    def __reduce__(self) -> tuple[Any, ...]:
        return share_filesystem, (self.filesystem, self.scheme)


_handles: list[FilesystemHandle] = []


def share_filesystem(filesystem: Any, scheme: str) -> FilesystemHandle:
    for handle in _handles:
        if handle.scheme == scheme and handle.filesystem == filesystem:
            return handle
    _handles.append(FilesystemHandle(filesystem, scheme))
    return _handles[-1]


class PathResolver:
    """Resolves a path to (filesystem, path on it). Each filesystem is created once per call."""

    def __init__(self, filesystem: Any) -> None:
        self.given_filesystem = None
        if filesystem is not None:
            arrow = to_arrow_filesystem(filesystem, "filesystem")
            fsspec_filesystem = unwrap_fsspec(arrow)
            self.strip = fsspec_filesystem._strip_protocol if fsspec_filesystem is not None else _without_scheme
            protocol = fsspec_filesystem.protocol if fsspec_filesystem is not None else arrow.type_name
            scheme = protocol if isinstance(protocol, str) else protocol[0]
            # For http, fsspec paths are full URLs already.
            shown = "" if scheme in ("file", "local", "subtree", "http", "https") else f"{scheme}://"
            self.given_filesystem = share_filesystem(arrow, shown)
        self.resolved: dict[tuple[str, str, str], FilesystemHandle] = {}

    def __call__(self, text: str) -> tuple[FilesystemHandle, str]:
        if self.given_filesystem is not None:
            path = str(self.strip(text))
            return self.given_filesystem, path if path.strip("/") == "" else path.rstrip("/")
        if "://" not in text:
            return share_filesystem(LocalFileSystem(), ""), os.path.abspath(make_absolute(text))
        parts = urlsplit(text)
        if parts.scheme == "file":
            return share_filesystem(LocalFileSystem(), ""), os.path.abspath(unquote(parts.path))
        key = (parts.scheme, parts.netloc, parts.query)
        if key in self.resolved and parts.scheme not in ("http", "https"):
            handle = self.resolved[key]
            return handle, f"{_bucket_name(text)}/{unquote(parts.path).strip('/')}".rstrip("/")
        try:
            filesystem, path = resolve_filesystem(text, "paths")
        except (ValueError, ImportError):
            raise
        except Exception as error:
            raise OSError(f"cannot open {_strip_credentials(text)}: {summarize_error(error)}") from error
        scheme = "" if parts.scheme in ("http", "https") else f"{parts.scheme}://"
        handle = share_filesystem(filesystem, scheme)
        if path == f"{_bucket_name(text)}/{unquote(parts.path).strip('/')}".rstrip("/"):
            self.resolved[key] = handle
        return handle, path.rstrip("/")


def _without_scheme(text: str) -> str:
    return text.partition("://")[2] or text


def _bucket_name(text: str) -> str:
    return urlsplit(text).netloc.rpartition("@")[2]


def _strip_credentials(text: str) -> str:
    parts = urlsplit(text)
    return f"{parts.scheme}://{_bucket_name(text)}{parts.path}" if "://" in text else text


def _get_file_infos(located: Sequence[tuple[FilesystemHandle, str]]) -> list[Any]:
    """With one request per filesystem."""
    infos: dict[int, Any] = {}
    for handle in {id(handle): handle for handle, _ in located}.values():
        indices = [index for index, (other, _) in enumerate(located) if other is handle]
        try:
            handle_infos = handle.filesystem.get_file_info([located[index][1] for index in indices])
        except Exception as error:
            shown = ", ".join(f"{handle.scheme}{located[index][1]}" for index in indices[:3])
            raise _access_error(error, f"{shown}{', ...' * (len(indices) > 3)}") from error
        infos |= dict(zip(indices, handle_infos, strict=True))
    return [infos[index] for index in range(len(located))]


def _access_error(error: Exception, paths: str) -> Exception:
    kind = type(error) if isinstance(error, FileNotFoundError | PermissionError) else OSError
    return kind(f"cannot access {paths}: {summarize_error(error)}")


def _relative_path(path: str, root: str) -> str:
    return path.strip("/").removeprefix(root.strip("/")).lstrip("/")


def _list_directory(handle: FilesystemHandle, directory: str) -> list[tuple[str, int | None]]:
    """List (path, size) of a directory's entries; directories have no size."""
    try:
        if isinstance(handle.filesystem, LocalFileSystem):  # pyarrow skips dangling links
            with os.scandir(directory) as entries:
                return [(entry.path, None if entry.is_dir() else entry.stat().st_size) for entry in entries]
        fsspec_filesystem = unwrap_fsspec(handle.filesystem)
        if fsspec_filesystem is None:
            infos = handle.filesystem.get_file_info(FileSelector(directory))
            return [(info.path, None if info.type == FileType.Directory else info.size) for info in infos]
        # Not through pyarrow: the fsspec listing that it uses silently skips unreadable directories.
        fsspec_filesystem.invalidate_cache()
        listed = fsspec_filesystem.ls(directory, detail=True)
    except Exception as error:
        raise _access_error(error, f"{handle.scheme}{directory}") from error
    return [
        (entry["name"].rstrip("/"), None if entry["type"] == "directory" else int(entry["size"] or 0))
        for entry in listed
        # Stores mark empty directories with an object whose name ends in a slash.
        if entry["name"].strip("/") != directory.strip("/")
        and (entry["type"] == "directory" or not entry["name"].endswith("/"))
    ]


def _list_recursively(handle: FilesystemHandle, directory: str) -> list[tuple[str, int]]:
    if unwrap_fsspec(handle.filesystem) is None and not isinstance(handle.filesystem, LocalFileSystem):
        try:  # one recursive listing of a store is many times faster than one per directory
            infos = handle.filesystem.get_file_info(FileSelector(directory, recursive=True))
        except Exception as error:
            raise _access_error(error, f"{handle.scheme}{directory}") from error
        listing = [(info.path, info.size) for info in infos if info.type == FileType.File]
        return [(path, size) for path, size in listing if not _is_hidden(_relative_path(path, directory))]
    files: list[tuple[str, int]] = []
    for path, size in _list_directory(handle, directory):
        if not _is_hidden(posixpath.basename(path)):
            files += _list_recursively(handle, path) if size is None else [(path, size)]
    return files


def _is_hidden(path: str) -> bool:
    return any(part[:1] == "." or (part[:1] == "_" and "=" not in part) for part in path.split("/"))


def _find_matching(handle: FilesystemHandle, directory: str, parts: list[str]) -> list[tuple[str, int]]:
    """List (path, size) of the files that match a pattern. A matching directory includes everything below it."""
    first, *rest = parts
    any_depth = first == "**"
    files = _find_matching(handle, directory, rest) if any_depth and rest else []
    for path, size in _list_directory(handle, directory):
        base = posixpath.basename(path)
        if _is_hidden(base) and (any_depth or first[:1] != base[:1]):
            continue
        if any_depth or fnmatchcase(base, first):
            if size is not None:
                files += [(path, size)] if not rest else []
            elif any_depth or rest:
                files += _find_matching(handle, path, parts if any_depth else rest)
            else:
                files += _list_recursively(handle, path)
    return files
