"""Where runs and searches lie below a path: directories with a journal, or prefixes of a store with slices of one.

Below a run nothing else is looked for, and below a search its trials. Links are not followed, so nothing that is found
lies outside of the path.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from paceline._storage.home import Home, is_remote, joined
from paceline._storage.segments import PREFIX

DEPTH = 5
"""How many folders deep is looked."""
_SEARCH = b'{"type":"SearchStarted"'


@dataclass(frozen=True)
class Place:
    id: str
    """Its path below the root; `.` for the root itself."""
    home: Home
    kind: Literal["run", "search"]
    stamp: object
    """Changes whenever the journal does."""


class Places(Protocol):
    def found(self) -> Iterator[Place]: ...


def below(root: str, filesystem: Any = None) -> Places:
    if is_remote(root, filesystem):
        return StorePlaces(root, filesystem)
    return DiskPlaces(Path(root.removeprefix("file://")).expanduser().absolute())


class DiskPlaces:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._kinds: dict[tuple[int, int], Literal["run", "search"]] = {}
        """By device and inode of the journal: what it begins with does not change."""

    def found(self) -> Iterator[Place]:
        ahead = [(str(self._root), ".", 0)]
        while ahead:
            directory, id, depth = ahead.pop()
            kind = None
            path = f"{directory}/journal.jsonl"
            try:
                journal = os.lstat(path)
            except OSError:
                journal = None
            if journal is not None and stat.S_ISREG(journal.st_mode):
                kind = self._kind(path, journal)
            if journal is not None and kind is not None:
                home = Home(os.path.dirname(directory), os.path.basename(directory))
                yield Place(id, home, kind, (journal.st_ino, journal.st_mtime_ns, journal.st_size))
            if kind != "run" and depth < DEPTH:
                ahead += [
                    (path, name if id == "." else f"{id}/{name}", depth + 1) for name, path in _folders(directory)
                ]

    def _kind(self, path: str, journal: os.stat_result) -> Literal["run", "search"] | None:
        key = journal.st_dev, journal.st_ino
        kind = self._kinds.get(key)
        if kind is None:
            try:
                with open(path, "rb") as file:
                    head = file.read(9 + len(_SEARCH))
            except OSError:
                return None
            if len(head) < 9 + len(_SEARCH):
                return None
            kind = self._kinds[key] = "search" if head[9:] == _SEARCH else "run"
        return kind


def _folders(directory: str) -> list[tuple[str, str]]:
    try:
        with os.scandir(directory) as entries:
            return [
                (entry.name, entry.path)
                for entry in entries
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []


class StorePlaces:
    def __init__(self, root: str, filesystem: Any = None) -> None:
        self._root = root
        self._given = filesystem
        self._store = Home.of_path(root, filesystem).store()
        self._kinds: dict[tuple[str, int], Literal["run", "search"]] = {}

    def found(self) -> Iterator[Place]:
        ahead = [("", 0)]
        while ahead:
            prefix, depth = ahead.pop()
            folders = self._folders(prefix)
            kind = None
            if PREFIX in folders:
                slices = self._store.entries(f"{prefix}/{PREFIX}" if prefix else PREFIX)
                if slices:
                    kind = self._kind(slices[0].key, slices[0].size)
                    home = Home.of_path(joined(self._root, prefix) if prefix else self._root, self._given)
                    yield Place(prefix or ".", home, kind, tuple((entry.key, entry.size) for entry in slices))
            if kind != "run" and depth < DEPTH:
                ahead += [
                    (f"{prefix}/{name}" if prefix else name, depth + 1)
                    for name in folders
                    if name not in (PREFIX, "logs", "reports") and not name.startswith(".")
                ]

    def _kind(self, key: str, size: int) -> Literal["run", "search"]:
        kind = self._kinds.get((key, size))
        if kind is None:
            head = self._store.read(key)[9 : 9 + len(_SEARCH)]
            kind = self._kinds[key, size] = "search" if head == _SEARCH else "run"
        return kind

    def _folders(self, prefix: str) -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        where = f"{self._store.path}/{prefix}" if prefix else self._store.path
        found = self._store.filesystem.get_file_info(FileSelector(where, allow_not_found=True))
        return [info.base_name for info in found if info.type == FileType.Directory]
