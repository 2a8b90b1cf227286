"""Lists the runs, searches and trials below a path. Repeated scans read only what has changed.

An id is a path below the root. Only entries found there have one, so no id leads out of the root.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any

from msgspec.structs import replace

from paceline._core.errors import PacelineError
from paceline._view.model import ENDED, Summary
from paceline._view.run_finder import RunEntry, make_run_finder
from paceline._view.run_reader import RunReader
from paceline._view.search_reader import SearchReader

_MAX_CACHED_READERS = 32
"""How many readers of ended runs to keep, the most recently read ones."""
_MAX_CACHED_REPORTS = 500_000
"""How many reports they may hold together, unless a single one has more."""


class Listing:
    """Thread-safe."""

    def __init__(self, root: str | os.PathLike[str], filesystem: Any = None) -> None:
        self.root = os.fspath(root)
        self._finder = make_run_finder(self.root, filesystem)
        self._lock = threading.RLock()
        self._entries: dict[str, RunEntry] = {}
        self._summaries: dict[str, Summary] = {}
        self._live_readers: dict[str, RunReader | SearchReader] = {}
        self._ended_readers: OrderedDict[str, RunReader | SearchReader] = OrderedDict()
        """Readers of ended runs."""

    def refresh(self) -> set[str]:
        """Scan again; return the ids of all entries that changed, appeared or vanished."""
        with self._lock:
            before, self._entries = self._entries, {place.id: place for place in self._finder.find_runs()}
            changed = set(before) - set(self._entries)
            for id in changed:
                self._summaries.pop(id, None)
                self._live_readers.pop(id, None)
                self._ended_readers.pop(id, None)
            for id, place in self._entries.items():
                known = self._summaries.get(id)
                if known is not None and known.state in ENDED and before[id].stamp == place.stamp:
                    continue
                if self._refresh_entry(place):
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
        found = self._get_reader(id)
        if not isinstance(found, RunReader):
            raise KeyError(f"{id!r} below {self.root} is a search, not a run")
        return found

    def search_reader(self, id: str) -> SearchReader:
        """Return the reader of a search; raise `KeyError` if the id is unknown."""
        found = self._get_reader(id)
        if not isinstance(found, SearchReader):
            raise KeyError(f"{id!r} below {self.root} is a run, not a search")
        return found

    def trials(self, id: str) -> list[Summary]:
        """Return the runs of a search, sorted by name."""
        with self._lock:
            found = [summary for summary in self._summaries.values() if summary.search == id]
            return sorted(found, key=lambda summary: summary.id)

    def _find_entry(self, id: str) -> RunEntry:
        if id not in self._entries:
            self.refresh()
        if id not in self._entries:
            raise KeyError(f"there is no run {id!r} below {self.root}")
        return self._entries[id]

    def _get_reader(self, id: str) -> RunReader | SearchReader:
        with self._lock:
            place = self._find_entry(id)
            found = self._live_readers.get(id) or self._ended_readers.get(id)
            if found is None:
                found = self._open_reader(place)
                found.refresh()
                self._cache_reader(id, found)
            elif id in self._ended_readers:
                self._ended_readers.move_to_end(id)
            return found

    def _cache_reader(self, id: str, reader: RunReader | SearchReader) -> None:
        self._ended_readers[id] = reader
        self._ended_readers.move_to_end(id)
        sizes = [one.num_rows if isinstance(one, RunReader) else 0 for one in self._ended_readers.values()]
        while len(self._ended_readers) > _MAX_CACHED_READERS or (
            len(self._ended_readers) > 1 and sum(sizes) > _MAX_CACHED_REPORTS
        ):
            self._ended_readers.popitem(last=False)
            del sizes[0]

    def _open_reader(self, place: RunEntry) -> RunReader | SearchReader:
        return SearchReader(place.location) if place.kind == "search" else RunReader(place.location)

    def _refresh_entry(self, place: RunEntry) -> bool:
        """Read what is new of one entry; return whether there was anything."""
        id = place.id
        reader = self._live_readers.get(id) or self._ended_readers.pop(id, None)
        is_new = id not in self._summaries
        try:
            if reader is None:
                reader = self._open_reader(place)
            if not reader.refresh() and not is_new:
                return False
            summary = self._summarize(place, reader)
        except (PacelineError, OSError) as problem:
            # The entry exists but cannot be read: its summary says so, and the others are still listed.
            self._live_readers.pop(id, None)
            return self._record_unreadable(place, str(problem))
        self._summaries[id] = summary
        if summary.state in ENDED:
            self._live_readers.pop(id, None)
            # It may be requested next, and a long one takes long to read.
            self._cache_reader(id, reader)
        else:
            self._live_readers[id] = reader
        return True

    def _summarize(self, place: RunEntry, reader: RunReader | SearchReader) -> Summary:
        summary = reader.summary(place.id)
        parent = place.id.rpartition("/")[0] or "."
        above = self._entries.get(parent)
        if place.kind == "run" and place.id != "." and above is not None and above.kind == "search":
            return replace(summary, kind="trial", search=parent)
        return summary

    def _record_unreadable(self, place: RunEntry, problem: str) -> bool:
        before = self._summaries.get(place.id)
        summary = Summary(
            id=place.id,
            name=place.location.name,
            path=place.location.uri,
            kind=place.kind,
            state="lost",
            began_at=before.began_at if before is not None else 0.0,
            updated_at=before.updated_at if before is not None else 0.0,
            failure=problem,
        )
        self._summaries[place.id] = summary
        return summary != before
