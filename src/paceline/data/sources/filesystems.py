"""pyarrow filesystems, found by URL or given, and their directory listings."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote, urlsplit

from pyarrow.fs import FileSelector, FileType, LocalFileSystem

from paceline._storage.address import resolve_filesystem, to_arrow_filesystem
from paceline._storage.arrow_store import unwrap_fsspec
from paceline._storage.store_errors import summarize_error

MAGIC = frozenset("*?[")
"""A path with one of these characters may be a pattern."""


@dataclass(frozen=True)
class FilesystemHandle:
    """A filesystem. Each one exists once per process, so that its connections are reused."""

    filesystem: Any
    """A `pyarrow.fs.FileSystem`."""
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
            return share_filesystem(LocalFileSystem(), ""), os.path.abspath(os.path.expanduser(text))
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
            raise OSError(f"cannot open {strip_credentials(text)}: {summarize_error(error)}") from error
        scheme = "" if parts.scheme in ("http", "https") else f"{parts.scheme}://"
        handle = share_filesystem(filesystem, scheme)
        if path == f"{_bucket_name(text)}/{unquote(parts.path).strip('/')}".rstrip("/"):
            self.resolved[key] = handle
        return handle, path.rstrip("/")


def _without_scheme(text: str) -> str:
    return text.partition("://")[2] or text


def _bucket_name(text: str) -> str:
    return urlsplit(text).netloc.rpartition("@")[2]


def strip_credentials(text: str) -> str:
    """Remove credentials and options from a URL."""
    parts = urlsplit(text)
    return f"{parts.scheme}://{_bucket_name(text)}{parts.path}" if "://" in text else text


def get_file_infos(located: Sequence[tuple[FilesystemHandle, str]]) -> list[Any]:
    """Return file infos for all paths, with one request per filesystem."""
    infos: dict[int, Any] = {}
    for handle in {id(handle): handle for handle, _ in located}.values():
        indices = [index for index, (other, _) in enumerate(located) if other is handle]
        try:
            found = handle.filesystem.get_file_info([located[index][1] for index in indices])
        except Exception as error:
            shown = ", ".join(f"{handle.scheme}{located[index][1]}" for index in indices[:3])
            raise _access_error(error, f"{shown}{', ...' * (len(indices) > 3)}") from error
        infos |= dict(zip(indices, found, strict=True))
    return [infos[index] for index in range(len(located))]


def _access_error(error: Exception, paths: str) -> Exception:
    kind = type(error) if isinstance(error, FileNotFoundError | PermissionError) else OSError
    return kind(f"cannot access {paths}: {summarize_error(error)}")


def relative_path(path: str, root: str) -> str:
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
        found = fsspec_filesystem.ls(directory, detail=True)
    except Exception as error:
        raise _access_error(error, f"{handle.scheme}{directory}") from error
    return [
        (entry["name"].rstrip("/"), None if entry["type"] == "directory" else int(entry["size"] or 0))
        for entry in found
        # Stores mark empty directories with an object whose name ends in a slash.
        if entry["name"].strip("/") != directory.strip("/")
        and (entry["type"] == "directory" or not entry["name"].endswith("/"))
    ]


def list_recursively(handle: FilesystemHandle, directory: str) -> list[tuple[str, int]]:
    """List (path, size) of all files at any depth."""
    if unwrap_fsspec(handle.filesystem) is None and not isinstance(handle.filesystem, LocalFileSystem):
        try:  # one recursive listing of a store is many times faster than one per directory
            infos = handle.filesystem.get_file_info(FileSelector(directory, recursive=True))
        except Exception as error:
            raise _access_error(error, f"{handle.scheme}{directory}") from error
        found = [(info.path, info.size) for info in infos if info.type == FileType.File]
        return [(path, size) for path, size in found if not _is_hidden(relative_path(path, directory))]
    files: list[tuple[str, int]] = []
    for path, size in _list_directory(handle, directory):
        if not _is_hidden(posixpath.basename(path)):
            files += list_recursively(handle, path) if size is None else [(path, size)]
    return files


def _is_hidden(path: str) -> bool:
    return any(part[:1] == "." or (part[:1] == "_" and "=" not in part) for part in path.split("/"))


def find_matching(handle: FilesystemHandle, directory: str, parts: list[str]) -> list[tuple[str, int]]:
    """List (path, size) of the files that match a pattern. A matching directory includes everything below it."""
    first, *rest = parts
    if first == "**":
        files = find_matching(handle, directory, rest) if rest else []
        for path, size in _list_directory(handle, directory):
            if not _is_hidden(posixpath.basename(path)):
                if size is None:
                    files += find_matching(handle, path, parts)
                elif not rest:
                    files.append((path, size))
        return files
    files = []
    for path, size in _list_directory(handle, directory):
        base = posixpath.basename(path)
        if fnmatchcase(base, first) and (not _is_hidden(base) or first[:1] == base[:1]):
            if size is None:
                files += find_matching(handle, path, rest) if rest else list_recursively(handle, path)
            elif not rest:
                files.append((path, size))
    return files
