"""Finds runs and searches below a path: directories with a journal, or prefixes of a store with journal segments.

Does not search below a run, and below a search only for its trials. Does not follow links, so everything found is
inside the path.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from paceline._storage.journal_segments import JOURNAL_PREFIX
from paceline._storage.run_location import RunLocation, is_remote, join_storage_path

MAX_DEPTH = 5
"""How many folders deep to search."""
_SEARCH_HEAD = b'{"type":"search_started"'


@dataclass(frozen=True)
class RunEntry:
    id: str
    """Path below the root; `.` for the root itself."""
    location: RunLocation
    kind: Literal["run", "search"]
    stamp: object
    """Changes whenever the journal does."""


class RunFinder(Protocol):
    def find_runs(self) -> Iterator[RunEntry]: ...


def make_run_finder(root: str, filesystem: Any = None) -> RunFinder:
    if is_remote(root, filesystem):
        return RemoteRunFinder(root, filesystem)
    return DiskRunFinder(Path(root.removeprefix("file://")).expanduser().absolute())


class DiskRunFinder:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._kinds: dict[tuple[int, int], Literal["run", "search"]] = {}
        """By device and inode of the journal: its start never changes."""

    def find_runs(self) -> Iterator[RunEntry]:
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
                kind = self._read_kind(path, journal)
            if journal is not None and kind is not None:
                home = RunLocation(os.path.dirname(directory), os.path.basename(directory))
                yield RunEntry(id, home, kind, (journal.st_ino, journal.st_mtime_ns, journal.st_size))
            if kind != "run" and depth < MAX_DEPTH:
                ahead += [
                    (path, name if id == "." else f"{id}/{name}", depth + 1) for name, path in _list_folders(directory)
                ]

    def _read_kind(self, path: str, journal: os.stat_result) -> Literal["run", "search"] | None:
        key = journal.st_dev, journal.st_ino
        kind = self._kinds.get(key)
        if kind is None:
            try:
                with open(path, "rb") as file:
                    head = file.read(9 + len(_SEARCH_HEAD))
            except OSError:
                return None
            if len(head) < 9 + len(_SEARCH_HEAD):
                return None
            kind = self._kinds[key] = "search" if head[9:] == _SEARCH_HEAD else "run"
        return kind


def _list_folders(directory: str) -> list[tuple[str, str]]:
    try:
        with os.scandir(directory) as entries:
            return [
                (entry.name, entry.path)
                for entry in entries
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []


class RemoteRunFinder:
    def __init__(self, root: str, filesystem: Any = None) -> None:
        self._root = root
        self._filesystem = filesystem
        self._store = RunLocation.from_path(root, filesystem).open_store()
        self._kinds: dict[tuple[str, int], Literal["run", "search"]] = {}

    def find_runs(self) -> Iterator[RunEntry]:
        ahead = [("", 0)]
        while ahead:
            prefix, depth = ahead.pop()
            folders = self._list_folders(prefix)
            kind = None
            if JOURNAL_PREFIX in folders:
                slices = self._store.list_entries(f"{prefix}/{JOURNAL_PREFIX}" if prefix else JOURNAL_PREFIX)
                if slices:
                    kind = self._read_kind(slices[0].key, slices[0].size)
                    home = RunLocation.from_path(
                        join_storage_path(self._root, prefix) if prefix else self._root, self._filesystem
                    )
                    yield RunEntry(prefix or ".", home, kind, tuple((entry.key, entry.size) for entry in slices))
            if kind != "run" and depth < MAX_DEPTH:
                ahead += [
                    (f"{prefix}/{name}" if prefix else name, depth + 1)
                    for name in folders
                    if name not in (JOURNAL_PREFIX, "logs", "reports") and not name.startswith(".")
                ]

    def _read_kind(self, key: str, size: int) -> Literal["run", "search"]:
        kind = self._kinds.get((key, size))
        if kind is None:
            head = self._store.read(key)[9 : 9 + len(_SEARCH_HEAD)]
            kind = self._kinds[key, size] = "search" if head == _SEARCH_HEAD else "run"
        return kind

    def _list_folders(self, prefix: str) -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        where = f"{self._store.path}/{prefix}" if prefix else self._store.path
        found = self._store.filesystem.get_file_info(FileSelector(where, allow_not_found=True))
        return [info.base_name for info in found if info.type == FileType.Directory]
