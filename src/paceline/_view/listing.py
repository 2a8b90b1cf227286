"""Lists the runs, searches and trials below a path. Repeated scans read only what has changed.

An id is a path below the root. Only entries found there have one, so no id leads out of the root.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec.structs import replace

from paceline._control.recovery import has_lost_journal
from paceline._core.errors import PacelineError
from paceline._storage.journal_archive import decompress_segment
from paceline._storage.journal_segments import JOURNAL_PREFIX
from paceline._storage.run_location import RunLocation, is_remote, join_storage_path
from paceline._view.model import ENDED, SearchDetail, Summary
from paceline._view.run_reader import RunReader, read_ended_summary

_MAX_CACHED_READERS = 32
"""How many readers of ended runs to keep, the most recently read ones."""
_MAX_CACHED_REPORTS = 500_000
"""How many reports they may hold together, unless a single one has more."""


class SearchFollower(Protocol):
    """Reads a search. `tune`, which builds on this package, has it: whoever opens a listing passes it."""

    location: RunLocation
    version: int

    def refresh(self) -> bool: ...

    def trial_names(self) -> dict[str, str]: ...

    def summary(self, id: str = ".") -> Summary: ...

    def detail(
        self, id: str, trials: Sequence[Summary], metric: str | None = None, mode: str | None = None
    ) -> SearchDetail: ...


OpenSearch = Callable[[RunLocation], SearchFollower]


class Listing:
    """Thread-safe."""

    def __init__(self, root: str | os.PathLike[str], open_search: OpenSearch, filesystem: Any = None) -> None:
        self.root = os.fspath(root)
        self._open_search = open_search
        self._finder = make_run_finder(self.root, filesystem)
        self._lock = threading.RLock()
        self._entries: dict[str, RunEntry] = {}
        self._summaries: dict[str, Summary] = {}
        self._trial_names: dict[str, dict[str, str]] = {}
        """By search and run: the names that users gave trials."""
        self._live_readers: dict[str, RunReader | SearchFollower] = {}
        self._ended_readers: OrderedDict[str, RunReader | SearchFollower] = OrderedDict()

    def refresh(self) -> set[str]:
        """Scan again; return the ids of all entries that changed, appeared or vanished."""
        with self._lock:
            before, self._entries = self._entries, {entry.id: entry for entry in self._finder.find_runs()}
            changed = set(before) - set(self._entries)
            for id in changed:
                self._summaries.pop(id, None)
                self._trial_names.pop(id, None)
                self._live_readers.pop(id, None)
                self._ended_readers.pop(id, None)
            for id, entry in self._entries.items():
                summary = self._summaries.get(id)
                if summary is not None and summary.state in ENDED and before[id].stamp == entry.stamp:
                    continue
                if self._refresh_entry(entry):
                    changed.add(id)
            return changed

    def summaries(self) -> list[Summary]:
        """Newest first."""
        with self._lock:
            return sorted(self._summaries.values(), key=lambda summary: (-summary.began_at, summary.id))

    def summary(self, id: str) -> Summary:
        """Return a summary as of the last `refresh`; raise `KeyError` if there is none."""
        with self._lock:
            self._find_entry(id)
            if id not in self._summaries:
                raise KeyError(f"{id!r} below {self.root} cannot be read")
            return self._summaries[id]

    def reader(self, id: str) -> RunReader:
        """Return the reader of a run or trial; raise `KeyError` if the id is unknown."""
        if isinstance(reader := self._get_reader(id), RunReader):
            return reader
        raise KeyError(f"{id!r} below {self.root} is a search, not a run")

    def search_reader(self, id: str) -> SearchFollower:
        """Return the reader of a search; raise `KeyError` if the id is unknown."""
        if not isinstance(reader := self._get_reader(id), RunReader):
            return reader
        raise KeyError(f"{id!r} below {self.root} is a run, not a search")

    def search_detail(self, id: str, metric: str | None = None, mode: str | None = None) -> SearchDetail:
        """Return a search with its runs, sorted by name; raise `KeyError` if the id is unknown."""
        reader = self.search_reader(id)
        reader.refresh()
        with self._lock:
            trials = [summary for summary in self._summaries.values() if summary.search == id]
        return reader.detail(id, sorted(trials, key=lambda summary: summary.id), metric, mode)

    def _find_entry(self, id: str) -> RunEntry:
        if id not in self._entries:
            self.refresh()
        if id not in self._entries:
            raise KeyError(f"no run {id!r} below {self.root}")
        return self._entries[id]

    def _get_reader(self, id: str) -> RunReader | SearchFollower:
        with self._lock:
            entry = self._find_entry(id)
            reader = self._live_readers.get(id) or self._ended_readers.get(id)
            if reader is None or (isinstance(reader, RunReader) and not reader.is_whole):
                reader = self._open_reader(entry)
                reader.refresh()
                if id in self._live_readers:
                    self._live_readers[id] = reader
                else:
                    self._cache_reader(id, reader)
            elif id in self._ended_readers:
                self._ended_readers.move_to_end(id)
            return reader

    def _cache_reader(self, id: str, reader: RunReader | SearchFollower) -> None:
        self._ended_readers[id] = reader
        self._ended_readers.move_to_end(id)
        sizes = [reader.num_rows if isinstance(reader, RunReader) else 0 for reader in self._ended_readers.values()]
        while len(self._ended_readers) > _MAX_CACHED_READERS or (
            len(self._ended_readers) > 1 and sum(sizes) > _MAX_CACHED_REPORTS
        ):
            self._ended_readers.popitem(last=False)
            del sizes[0]

    def _open_reader(self, entry: RunEntry, *, only_summary: bool = False) -> RunReader | SearchFollower:
        if entry.kind == "search":
            return self._open_search(entry.location)
        return RunReader(entry.location, only_summary=only_summary)

    def _refresh_entry(self, entry: RunEntry) -> bool:
        """Read what is new of one entry; return whether there was anything."""
        id = entry.id
        reader = self._live_readers.get(id) or self._ended_readers.pop(id, None)
        is_new = id not in self._summaries
        try:
            if reader is None and entry.kind == "run" and (ended := read_ended_summary(entry.location)) is not None:
                before = self._summaries.get(id)
                self._summaries[id] = self._place_summary(entry, replace(ended, id=id))
                return self._summaries[id] != before
            if reader is None:
                reader = self._open_reader(entry, only_summary=True)
            if not reader.refresh() and not is_new:
                return False
            summary = self._summarize(entry, reader)
        except (PacelineError, OSError) as problem:
            # The entry exists but cannot be read: its summary says so, and the others are still listed.
            self._live_readers.pop(id, None)
            return self._record_unreadable(entry, str(problem))
        self._summaries[id] = summary
        if summary.state in ENDED:
            self._live_readers.pop(id, None)
            if not isinstance(reader, RunReader) or reader.is_whole:
                # It may be requested next, and a long one takes long to read.
                self._cache_reader(id, reader)
        else:
            self._live_readers[id] = reader
        return True

    def _summarize(self, entry: RunEntry, reader: RunReader | SearchFollower) -> Summary:
        summary = reader.summary(entry.id)
        if not isinstance(reader, RunReader):
            self._trial_names[entry.id] = reader.trial_names()
        return self._place_summary(entry, summary)

    def _place_summary(self, entry: RunEntry, summary: Summary) -> Summary:
        """Name the search that a run is a trial of."""
        parent = entry.id.rpartition("/")[0] or "."
        above = self._entries.get(parent)
        if entry.kind == "run" and entry.id != "." and above is not None and above.kind == "search":
            name = self._trial_names.get(parent, {}).get(summary.name, summary.name)
            return replace(summary, kind="trial", search=parent, name=name)
        return summary

    def _record_unreadable(self, entry: RunEntry, problem: str) -> bool:
        before = self._summaries.get(entry.id)
        began_at, updated_at = (before.began_at, before.updated_at) if before is not None else (0.0, 0.0)
        summary = Summary(
            id=entry.id,
            name=entry.location.name,
            path=entry.location.uri,
            kind=entry.kind,
            state="lost",
            began_at=began_at,
            updated_at=updated_at,
            failure=problem,
        )
        self._summaries[entry.id] = summary
        return summary != before


MAX_DEPTH = 5
_SEARCH_HEAD = b'{"type":"search_started"'


@dataclass(frozen=True)
class RunEntry:
    id: str
    """Path below the root; `.` for the root itself."""
    location: RunLocation
    kind: Literal["run", "search"]
    stamp: object
    """Changes whenever the journal does."""


def make_run_finder(root: str, filesystem: Any = None) -> DiskRunFinder | RemoteRunFinder:
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
            with contextlib.suppress(OSError):
                journal = os.lstat(path)
                kind = self._read_kind(path, journal) if stat.S_ISREG(journal.st_mode) else None
            if kind is not None:
                location = RunLocation(os.path.dirname(directory), os.path.basename(directory))
                yield RunEntry(id, location, kind, (journal.st_ino, journal.st_mtime_ns, journal.st_size))
            elif has_lost_journal(Path(directory)):
                kind = "run"
                yield RunEntry(id, RunLocation.from_path(directory), kind, os.stat(directory).st_mtime_ns)
            if kind != "run" and depth < MAX_DEPTH:
                prefix = "" if id == "." else f"{id}/"
                ahead += [(path, f"{prefix}{name}", depth + 1) for name, path in _list_folders(directory)]

    def _read_kind(self, path: str, journal: os.stat_result) -> Literal["run", "search"] | None:
        key = journal.st_dev, journal.st_ino
        kind = self._kinds.get(key)
        if kind is None:
            with open(path, "rb") as file:
                head = file.read(9 + len(_SEARCH_HEAD))
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
                    location = self._locate(prefix)
                    yield RunEntry(prefix or ".", location, kind, tuple((entry.key, entry.size) for entry in slices))
            elif any(name.startswith("attempt_") for name in folders):  # Its journal is lost.
                kind = "run"
                yield RunEntry(prefix or ".", self._locate(prefix), kind, tuple(folders))
            if kind != "run" and depth < MAX_DEPTH:
                ahead += [
                    (f"{prefix}/{name}" if prefix else name, depth + 1)
                    for name in folders
                    if name not in (JOURNAL_PREFIX, "logs", "reports") and not name.startswith(".")
                ]

    def _locate(self, prefix: str) -> RunLocation:
        return RunLocation.from_path(join_storage_path(self._root, prefix) if prefix else self._root, self._filesystem)

    def _read_kind(self, key: str, size: int) -> Literal["run", "search"]:
        kind = self._kinds.get((key, size))
        if kind is None:
            head = decompress_segment(self._store.read(key))[9 : 9 + len(_SEARCH_HEAD)]
            kind = self._kinds[key, size] = "search" if head == _SEARCH_HEAD else "run"
        return kind

    def _list_folders(self, prefix: str) -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        folder = f"{self._store.path}/{prefix}" if prefix else self._store.path
        infos = self._store.filesystem.get_file_info(FileSelector(folder, allow_not_found=True))
        return [info.base_name for info in infos if info.type == FileType.Directory]
