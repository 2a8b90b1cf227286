"""Places where files are: filesystems of pyarrow, found by an address or given, and what is in their directories."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote, urlsplit

from pyarrow.fs import FileSelector, FileType, LocalFileSystem

from paceline._storage.address import as_arrow, filesystem_at
from paceline._storage.arrow_store import fsspec_behind
from paceline._storage.trouble import in_short

MAGIC = frozenset("*?[")
"""A path with one of these may be a pattern."""


@dataclass(frozen=True)
class Place:
    """A filesystem. In one process there is one of each, so that its connections are used again."""

    filesystem: Any
    """A `pyarrow.fs.FileSystem`."""
    scheme: str
    """What stands before a path in messages: `s3://`, nothing for local files."""

    def __reduce__(self) -> tuple[Any, ...]:
        return shared, (self.filesystem, self.scheme)


_places: list[Place] = []


def shared(filesystem: Any, scheme: str) -> Place:
    for place in _places:
        if place.scheme == scheme and place.filesystem == filesystem:
            return place
    _places.append(Place(filesystem, scheme))
    return _places[-1]


class Resolver:
    """From a path as it was given to (place, path there); filesystems are made once for all paths of a call."""

    def __init__(self, filesystem: Any) -> None:
        self.given = None
        if filesystem is not None:
            arrow = as_arrow(filesystem, "filesystem")
            behind = fsspec_behind(arrow)
            self.strip = behind._strip_protocol if behind is not None else _without_scheme
            protocol = behind.protocol if behind is not None else arrow.type_name
            scheme = protocol if isinstance(protocol, str) else protocol[0]
            # What fsspec gives for http is a whole address already.
            shown = "" if scheme in ("file", "local", "subtree", "http", "https") else f"{scheme}://"
            self.given = shared(arrow, shown)
        self.made: dict[tuple[str, str, str], Place] = {}

    def __call__(self, text: str) -> tuple[Place, str]:
        if self.given is not None:
            path = str(self.strip(text))
            return self.given, path if path.strip("/") == "" else path.rstrip("/")
        if "://" not in text:
            return shared(LocalFileSystem(), ""), os.path.abspath(os.path.expanduser(text))
        parts = urlsplit(text)
        if parts.scheme == "file":
            return shared(LocalFileSystem(), ""), os.path.abspath(unquote(parts.path))
        key = (parts.scheme, parts.netloc, parts.query)
        if key in self.made and parts.scheme not in ("http", "https"):
            place = self.made[key]
            return place, f"{_bucket(text)}/{unquote(parts.path).strip('/')}".rstrip("/")
        try:
            filesystem, path = filesystem_at(text, "paths")
        except (ValueError, ImportError):
            raise
        except Exception as error:
            raise OSError(f"paths={bare(text)!r} cannot be opened: {in_short(error)}") from error
        scheme = "" if parts.scheme in ("http", "https") else f"{parts.scheme}://"
        place = shared(filesystem, scheme)
        if path == f"{_bucket(text)}/{unquote(parts.path).strip('/')}".rstrip("/"):
            self.made[key] = place
        return place, path.rstrip("/")


def _without_scheme(text: str) -> str:
    return text.partition("://")[2] or text


def _bucket(text: str) -> str:
    return urlsplit(text).netloc.rpartition("@")[2]


def bare(text: str) -> str:
    """An address without credentials and options."""
    parts = urlsplit(text)
    return f"{parts.scheme}://{_bucket(text)}{parts.path}" if "://" in text else text


def infos_at(located: Sequence[tuple[Place, str]]) -> list[Any]:
    """What is at each path: asked for together, where one place has many."""
    infos: dict[int, Any] = {}
    for place in {id(place): place for place, _ in located}.values():
        which = [index for index, (other, _) in enumerate(located) if other is place]
        try:
            found = place.filesystem.get_file_info([located[index][1] for index in which])
        except Exception as error:
            shown = ", ".join(f"{place.scheme}{located[index][1]}" for index in which[:3])
            raise _refused(error, f"{shown}{', ...' * (len(which) > 3)}") from error
        infos |= dict(zip(which, found, strict=True))
    return [infos[index] for index in range(len(located))]


def _refused(error: Exception, what: str) -> Exception:
    kind = type(error) if isinstance(error, FileNotFoundError | PermissionError) else OSError
    return kind(f"{what} cannot be looked at: {in_short(error)}")


def relative(path: str, root: str) -> str:
    return path.strip("/").removeprefix(root.strip("/")).lstrip("/")


def _children(place: Place, directory: str) -> list[tuple[str, int | None]]:
    """(path, size) of what is in a directory; directories have no size."""
    try:
        if isinstance(place.filesystem, LocalFileSystem):  # pyarrow passes over links that lead nowhere
            with os.scandir(directory) as entries:
                return [(entry.path, None if entry.is_dir() else entry.stat().st_size) for entry in entries]
        behind = fsspec_behind(place.filesystem)
        if behind is None:
            infos = place.filesystem.get_file_info(FileSelector(directory))
            return [(info.path, None if info.type == FileType.Directory else info.size) for info in infos]
        # Not through pyarrow: the listing of fsspec that it uses passes over directories which it cannot read.
        behind.invalidate_cache()
        found = behind.ls(directory, detail=True)
    except Exception as error:
        raise _refused(error, f"{place.scheme}{directory}") from error
    return [
        (entry["name"].rstrip("/"), None if entry["type"] == "directory" else int(entry["size"] or 0))
        for entry in found
        # A marker for an empty directory is an object too, and its name ends in a slash.
        if entry["name"].strip("/") != directory.strip("/")
        and (entry["type"] == "directory" or not entry["name"].endswith("/"))
    ]


def below(place: Place, directory: str) -> list[tuple[str, int]]:
    """(path, size) of all files at any depth."""
    if fsspec_behind(place.filesystem) is None and not isinstance(place.filesystem, LocalFileSystem):
        try:  # one listing of a store is many times faster than one for each directory
            infos = place.filesystem.get_file_info(FileSelector(directory, recursive=True))
        except Exception as error:
            raise _refused(error, f"{place.scheme}{directory}") from error
        found = [(info.path, info.size) for info in infos if info.type == FileType.File]
        return [(path, size) for path, size in found if not _hidden(relative(path, directory))]
    files: list[tuple[str, int]] = []
    for path, size in _children(place, directory):
        if not _hidden(posixpath.basename(path)):
            files += below(place, path) if size is None else [(path, size)]
    return files


def _hidden(path: str) -> bool:
    return any(part[:1] == "." or (part[:1] == "_" and "=" not in part) for part in path.split("/"))


def matching(place: Place, directory: str, parts: list[str]) -> list[tuple[str, int]]:
    """(path, size) of the files that a pattern finds; of a directory that it finds, all that is below."""
    first, *rest = parts
    if first == "**":
        files = matching(place, directory, rest) if rest else []
        for path, size in _children(place, directory):
            if not _hidden(posixpath.basename(path)):
                if size is None:
                    files += matching(place, path, parts)
                elif not rest:
                    files.append((path, size))
        return files
    files = []
    for path, size in _children(place, directory):
        base = posixpath.basename(path)
        if fnmatchcase(base, first) and (not _hidden(base) or first[:1] == base[:1]):
            if size is None:
                files += matching(place, path, rest) if rest else below(place, path)
            elif not rest:
                files.append((path, size))
    return files
