"""The runs, searches and trials below a path. Looked through again and again: what has not changed is not read.

An id is a path below the root, and only what was found there has one: none leads out of it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any

from msgspec.structs import replace

from paceline._core.errors import PacelineError
from paceline._view.model import ENDED, Summary
from paceline._view.places import Place, below
from paceline._view.reading import RunReader
from paceline._view.searches import SearchReader

_KEPT = 32
"""So many readers of runs that have ended are kept, of those that were read last."""
_KEPT_REPORTS = 500_000
"""So many reports they may hold together, unless one alone has more."""


class Listing:
    """May be used from several threads."""

    def __init__(self, root: str | os.PathLike[str], filesystem: Any = None) -> None:
        self.root = os.fspath(root)
        self._places = below(self.root, filesystem)
        self._lock = threading.RLock()
        self._found: dict[str, Place] = {}
        self._summaries: dict[str, Summary] = {}
        self._live: dict[str, RunReader | SearchReader] = {}
        self._asked: OrderedDict[str, RunReader | SearchReader] = OrderedDict()
        """Of runs that have ended."""

    def refresh(self) -> set[str]:
        """Look again; the ids of all that changed, appeared or vanished."""
        with self._lock:
            before, self._found = self._found, {place.id: place for place in self._places.found()}
            changed = set(before) - set(self._found)
            for id in changed:
                self._summaries.pop(id, None)
                self._live.pop(id, None)
                self._asked.pop(id, None)
            for id, place in self._found.items():
                known = self._summaries.get(id)
                if known is not None and known.state in ENDED and before[id].stamp == place.stamp:
                    continue
                if self._looked_at(place):
                    changed.add(id)
            return changed

    def summaries(self) -> list[Summary]:
        """The newest first."""
        with self._lock:
            return sorted(self._summaries.values(), key=lambda summary: (-summary.began_at, summary.id))

    def summary(self, id: str) -> Summary:
        """As of the last `refresh`; `KeyError` where there is none."""
        with self._lock:
            self._place(id)
            if id not in self._summaries:
                raise KeyError(f"{id!r} below {self.root} cannot be read")
            return self._summaries[id]

    def reader(self, id: str) -> RunReader:
        """Of a run or trial; `KeyError` where there is none of this id."""
        found = self._reader(id)
        if not isinstance(found, RunReader):
            raise KeyError(f"{id!r} below {self.root} is a search, not a run")
        return found

    def search(self, id: str) -> SearchReader:
        """The same of a search."""
        found = self._reader(id)
        if not isinstance(found, SearchReader):
            raise KeyError(f"{id!r} below {self.root} is a run, not a search")
        return found

    def trials(self, id: str) -> list[Summary]:
        """Of a search: its runs, in the order of their names."""
        with self._lock:
            found = [summary for summary in self._summaries.values() if summary.search == id]
            return sorted(found, key=lambda summary: summary.id)

    def _place(self, id: str) -> Place:
        if id not in self._found:
            self.refresh()
        if id not in self._found:
            raise KeyError(f"there is no run {id!r} below {self.root}")
        return self._found[id]

    def _reader(self, id: str) -> RunReader | SearchReader:
        with self._lock:
            place = self._place(id)
            found = self._live.get(id) or self._asked.get(id)
            if found is None:
                found = self._opened(place)
                found.refresh()
                self._keep(id, found)
            elif id in self._asked:
                self._asked.move_to_end(id)
            return found

    def _keep(self, id: str, reader: RunReader | SearchReader) -> None:
        self._asked[id] = reader
        self._asked.move_to_end(id)
        sizes = [one.num_rows if isinstance(one, RunReader) else 0 for one in self._asked.values()]
        while len(self._asked) > _KEPT or (len(self._asked) > 1 and sum(sizes) > _KEPT_REPORTS):
            self._asked.popitem(last=False)
            del sizes[0]

    def _opened(self, place: Place) -> RunReader | SearchReader:
        return SearchReader(place.home) if place.kind == "search" else RunReader(place.home)

    def _looked_at(self, place: Place) -> bool:
        """Read what is new of one; whether there was anything."""
        id = place.id
        reader = self._live.get(id) or self._asked.pop(id, None)
        is_new = id not in self._summaries
        try:
            if reader is None:
                reader = self._opened(place)
            if not reader.refresh() and not is_new:
                return False
            summary = self._summarised(place, reader)
        except (PacelineError, OSError) as problem:
            # It is there, and cannot be read: that is said of it, and does not keep others from being listed.
            self._live.pop(id, None)
            return self._unreadable(place, str(problem))
        self._summaries[id] = summary
        if summary.state in ENDED:
            self._live.pop(id, None)
            # It may be the one that is asked for next, and a long one takes long to read.
            self._keep(id, reader)
        else:
            self._live[id] = reader
        return True

    def _summarised(self, place: Place, reader: RunReader | SearchReader) -> Summary:
        summary = reader.summary(place.id)
        parent = place.id.rpartition("/")[0] or "."
        above = self._found.get(parent)
        if place.kind == "run" and place.id != "." and above is not None and above.kind == "search":
            return replace(summary, kind="trial", search=parent)
        return summary

    def _unreadable(self, place: Place, problem: str) -> bool:
        before = self._summaries.get(place.id)
        summary = Summary(
            id=place.id,
            name=place.home.name,
            path=place.home.uri,
            kind=place.kind,
            state="lost",
            began_at=before.began_at if before is not None else 0.0,
            updated_at=before.updated_at if before is not None else 0.0,
            failure=problem,
        )
        self._summaries[place.id] = summary
        return summary != before
