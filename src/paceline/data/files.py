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
from fnmatch import fnmatchcase
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType, LocalFileSystem

from paceline._storage.address import as_arrow, filesystem_at
from paceline._storage.arrow_store import fsspec_behind
from paceline._storage.trouble import in_short

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
"""By the end of a file's name: what its content is packed with."""

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_MAGIC = frozenset("*?[")


@dataclass(frozen=True)
class Place:
    """A filesystem. In one process there is one of each, so that its connections are used again."""

    filesystem: Any
    """A `pyarrow.fs.FileSystem`."""
    scheme: str
    """What stands before a path in messages: `s3://`, nothing for local files."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _shared, (self.filesystem, self.scheme)


_places: list[Place] = []


def _shared(filesystem: Any, scheme: str) -> Place:
    for place in _places:
        if place.scheme == scheme and place.filesystem == filesystem:
            return place
    _places.append(Place(filesystem, scheme))
    return _places[-1]


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
    resolve = _Resolver(filesystem)
    located = [resolve(path) for path in given]
    infos = _infos(located)
    files: list[File] = []
    for text, (place, path), info in zip(given, located, infos, strict=True):
        found = _found(text, place, path, info, extensions)
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


class _Resolver:
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
            self.given = _shared(arrow, shown)
        self.made: dict[tuple[str, str, str], Place] = {}

    def __call__(self, text: str) -> tuple[Place, str]:
        if self.given is not None:
            path = str(self.strip(text))
            return self.given, path if path.strip("/") == "" else path.rstrip("/")
        if "://" not in text:
            return _shared(LocalFileSystem(), ""), os.path.abspath(os.path.expanduser(text))
        parts = urlsplit(text)
        if parts.scheme == "file":
            return _shared(LocalFileSystem(), ""), os.path.abspath(unquote(parts.path))
        key = (parts.scheme, parts.netloc, parts.query)
        if key in self.made and parts.scheme not in ("http", "https"):
            place = self.made[key]
            return place, f"{_bucket(text)}/{unquote(parts.path).strip('/')}".rstrip("/")
        try:
            filesystem, path = filesystem_at(text, "paths")
        except (ValueError, ImportError):
            raise
        except Exception as error:
            raise OSError(f"paths={_bare(text)!r} cannot be opened: {in_short(error)}") from error
        scheme = "" if parts.scheme in ("http", "https") else f"{parts.scheme}://"
        place = _shared(filesystem, scheme)
        if path == f"{_bucket(text)}/{unquote(parts.path).strip('/')}".rstrip("/"):
            self.made[key] = place
        return place, path.rstrip("/")


def _without_scheme(text: str) -> str:
    return text.partition("://")[2] or text


def _bucket(text: str) -> str:
    return urlsplit(text).netloc.rpartition("@")[2]


def _bare(text: str) -> str:
    """An address without credentials and options."""
    parts = urlsplit(text)
    return f"{parts.scheme}://{_bucket(text)}{parts.path}" if "://" in text else text


def _infos(located: Sequence[tuple[Place, str]]) -> list[Any]:
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


def _found(text: str, place: Place, path: str, info: Any, extensions: tuple[str, ...]) -> list[File]:
    if info.type == FileType.File:
        return [File(path, info.size or 0, place, posixpath.basename(path) or path)]
    if info.type == FileType.Directory:
        below = _below(place, path)
        root = path
    elif _MAGIC & set(path):
        root = posixpath.dirname(path[: min(path.index(sign) for sign in _MAGIC & set(path))])
        below = _matching(place, root, path[len(root) :].strip("/").split("/"))
    else:
        return []
    wanted = [(path, size) for path, size in below if not extensions or path.lower().endswith(extensions)]
    return [File(path, size, place, posixpath.relpath(path, root or "/")) for path, size in sorted(set(wanted))]


def _nothing(text: str, place: Place, path: str, info: Any, extensions: tuple[str, ...]) -> Exception:
    shown = _bare(text)
    if info.type == FileType.NotFound and not _MAGIC & set(path):
        return FileNotFoundError(f"paths={shown!r}: there is no file or directory {place.scheme}{path}")
    what = "the directory has" if info.type == FileType.Directory else "the pattern finds"
    if extensions and (others := _found(text, place, path, info, ())):
        return FileNotFoundError(
            f"paths={shown!r}: {what} no file that ends in {' or '.join(extensions)}, but {len(others)} that "
            f"{'does' if len(others) == 1 else 'do'} not, such as {others[0].name}\n\n"
            "hint: file_extensions=None takes all files, file_extensions=['...'] others"
        )
    return FileNotFoundError(f"paths={shown!r}: {what} no file (names that begin with . or _ do not count)")


def _children(place: Place, directory: str) -> list[tuple[str, int | None]]:
    """(path, size) of what is in a directory; directories have no size."""
    try:
        behind = fsspec_behind(place.filesystem)
        if behind is None:
            infos = place.filesystem.get_file_info(FileSelector(directory))
            return [(info.path, _size(info)) for info in infos]
        # Not through pyarrow: the listing of fsspec that it uses passes over directories which it cannot read.
        behind.invalidate_cache()
        entries = behind.ls(directory, detail=True)
    except Exception as error:
        raise _refused(error, f"{place.scheme}{directory}") from error
    return [
        (entry["name"].rstrip("/"), None if entry["type"] == "directory" else int(entry["size"] or 0))
        for entry in entries
        # A marker for an empty directory is an object too, and its name ends in a slash.
        if entry["name"].strip("/") != directory.strip("/")
        and (entry["type"] == "directory" or not entry["name"].endswith("/"))
    ]


def _size(info: Any) -> int | None:
    if info.type not in (FileType.File, FileType.Directory):
        raise OSError(f"it has {info.path}, which is neither a file nor a directory: a link that leads nowhere?")
    return int(info.size) if info.type == FileType.File else None


def _below(place: Place, directory: str) -> list[tuple[str, int]]:
    """(path, size) of all files at any depth."""
    if fsspec_behind(place.filesystem) is None and not isinstance(place.filesystem, LocalFileSystem):
        try:  # one listing of a store is many times faster than one for each directory
            infos = place.filesystem.get_file_info(FileSelector(directory, recursive=True))
        except Exception as error:
            raise _refused(error, f"{place.scheme}{directory}") from error
        found = [(info.path, info.size) for info in infos if info.type == FileType.File]
        return [(path, size) for path, size in found if not _hidden(posixpath.relpath(path, directory or "/"))]
    files: list[tuple[str, int]] = []
    for path, size in _children(place, directory):
        if not _hidden(posixpath.basename(path)):
            files += _below(place, path) if size is None else [(path, size)]
    return files


def _hidden(path: str) -> bool:
    return any(part[:1] == "." or (part[:1] == "_" and "=" not in part) for part in path.split("/"))


def _matching(place: Place, directory: str, parts: list[str]) -> list[tuple[str, int]]:
    """(path, size) of the files that a pattern finds; of a directory that it finds, all that is below."""
    first, *rest = parts
    if first == "**":
        files = _matching(place, directory, rest) if rest else []
        for path, size in _children(place, directory):
            if not _hidden(posixpath.basename(path)):
                if size is None:
                    files += _matching(place, path, parts)
                elif not rest:
                    files.append((path, size))
        return files
    files = []
    for path, size in _children(place, directory):
        base = posixpath.basename(path)
        if fnmatchcase(base, first) and (not _hidden(base) or first[:1] == base[:1]):
            if size is None:
                files += _matching(place, path, rest) if rest else _below(place, path)
            elif not rest:
                files.append((path, size))
    return files


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
