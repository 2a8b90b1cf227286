"""Arguments that commands share: a parser with examples, `--json`, and a run given by path, address or name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paceline._commands import cli_output
from paceline._core import settings
from paceline._storage.journal_archive import decompress_segment
from paceline._storage.journal_segments import JOURNAL_PREFIX
from paceline._storage.run_layout import MANIFEST
from paceline._storage.run_location import RunLocation, is_remote, join_storage_path

if TYPE_CHECKING:
    from paceline._view.run_reader import RunReader

RUN = "its directory, its address (s3://...), or its name under the storage path"
_JOURNAL = "journal.jsonl"
_SEARCH = b'{"type":"search_started"'
CODES = "0 fine, 2 bad usage or not found"


class RunNotFoundError(ValueError):
    """The argument does not name a run."""


class CommandParser(argparse.ArgumentParser):
    """The parser of one subcommand, with examples and exit codes in its epilog.

    `runs` are the positional arguments that name a run, and `json` is the help of `--json`; None: no such option.
    """

    def __init__(
        self,
        command: str,
        description: str,
        *examples: str,
        codes: str = CODES,
        runs: Sequence[str] = ("run",),
        json: str | None = "print one JSON document",
    ) -> None:
        told = "Example:" if len(examples) == 1 else "Examples:"
        shown = "\n".join((told, *(f"  {example}" for example in examples)))
        super().__init__(
            prog=f"paceline {command}",
            description=cli_output.wrap_text(" ".join(description.split()), 79),
            epilog=f"{shown}\n\n{cli_output.wrap_text(f'Exit code: {codes}', 79)}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for name in runs:
            self.add_argument(name, metavar="RUN", help=RUN)
        if json is not None:
            self.add_argument("--json", action="store_true", help=json)

    def add_rank_option(self, default: str = "") -> None:
        about = f"only this rank; may be repeated{default}"
        self.add_argument("--rank", type=parse_non_negative_int, action="append", default=[], metavar="N", help=about)


def _parse_int(text: str, at_least: int, expected: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = at_least - 1
    if number < at_least:
        raise argparse.ArgumentTypeError(f"must be {expected}, got {text!r}")
    return number


parse_positive_int = partial(_parse_int, at_least=1, expected="a positive integer")
parse_non_negative_int = partial(_parse_int, at_least=0, expected="a non-negative integer")


def locate_run(run: str, *, or_search: bool = False) -> RunLocation:
    """Locate a run given by path, address or name. Raises `RunNotFoundError` if there is none."""
    location = _locate_run_or_search(run)
    if not or_search and is_search(location):
        raise RunNotFoundError(
            f"{run} is a search, not a run\n\n"
            f"hint: `paceline show {run}` lists its trials; give one of them, such as {run}/trial_00000"
        )
    return location


def is_search(location: RunLocation) -> bool:
    """Return whether the journal at this location belongs to a search, judging by its first event."""
    if location.address is None:
        if not location.layout.journal.exists():
            return False  # A run whose journal is lost.
        with open(location.layout.journal, "rb") as file:
            start = file.read(64)
    else:
        store = location.open_store()
        segments = store.list_entries(JOURNAL_PREFIX)
        start = decompress_segment(store.read(segments[0].key)) if segments else b""
    return start[9:].startswith(_SEARCH)


def find_parent_search(location: RunLocation) -> RunLocation | None:
    """Return the search this run is a trial of, or None."""
    below_scheme = location.storage_path.partition("?")[0].partition("://")[2].strip("/")
    if location.address is not None and "/" not in below_scheme:
        return None  # At the top level of a bucket.
    parent = RunLocation.from_path(location.storage_path, location.filesystem)
    if parent.address is None:
        has_journal = _has_journal(parent.uri)
    else:
        has_journal = bool(parent.open_store().list_entries(JOURNAL_PREFIX))
    return parent if has_journal and is_search(parent) else None


def _locate_run_or_search(run: str) -> RunLocation:
    if is_remote(run):
        location = RunLocation.from_path(run)
        if not _has_stored_run(location):
            raise RunNotFoundError(f"there is no run in {location.uri}")
        return location
    path = os.path.abspath(os.path.expanduser(run.removeprefix("file://")))
    if _has_run(path):
        return RunLocation.from_path(path)
    root = settings.default_storage_path()
    if is_remote(root):
        location = RunLocation.from_path(join_storage_path(root, run.strip("/")))
        if not os.path.isabs(run) and _has_stored_run(location):
            return location
        raise RunNotFoundError(f"there is no run {run!r}, neither here nor in {root}")
    named = os.path.join(root, run)
    if not os.path.isabs(os.path.expanduser(run)) and ".." not in run.split("/") and _has_run(named):
        return RunLocation.from_path(named)
    raise RunNotFoundError(_not_found_message(run, path, root))


def resolve_root(path: str | None) -> str:
    """Return the path or address whose runs are listed; the default is the storage path."""
    if path is None:
        return settings.default_storage_path()
    if is_remote(path):
        return path
    local = os.path.abspath(os.path.expanduser(path.removeprefix("file://")))
    if not os.path.isdir(local):
        raise RunNotFoundError(f"{path} is not a directory")
    return local


def open_reader(location: RunLocation) -> RunReader:
    """Return a reader that has read the run."""
    from paceline._view.run_reader import RunReader

    reader = RunReader(location)
    reader.refresh()
    return reader


def _has_journal(path: str) -> bool:
    return os.path.exists(os.path.join(path, _JOURNAL))


def _has_run(path: str) -> bool:
    if _has_journal(path):
        return True
    from paceline._control.recovery import has_lost_journal

    return has_lost_journal(Path(path))


def _has_stored_run(location: RunLocation) -> bool:
    entries = location.open_store().list_entries()
    return any(entry.key.startswith(f"{JOURNAL_PREFIX}/") or entry.key.endswith(f"/{MANIFEST}") for entry in entries)


def _not_found_message(run: str, path: str, root: str) -> str:
    is_path = "/" in run or run.startswith((".", "~"))
    message = f"there is no run {run!r}, neither here nor in {root}"
    if is_path:
        message = f"there is no run {f'in {path}: it has no journal' if os.path.isdir(path) else f'at {path}'}"
    similar = _similar_names(os.path.basename(path), is_path, (os.path.dirname(path), root, os.getcwd()))
    if similar:
        return f"{message}\n\nhint: did you mean {' or '.join(similar)}?"
    return f"{message}\n\nhint: `paceline ls` lists the runs in {root}, `paceline ls PATH` those in another directory"


def _similar_names(name: str, as_path: bool, places: Sequence[str]) -> list[str]:
    """Names of similar runs, nearest places first, as paths or plain names depending on what the user gave."""
    import difflib

    similar: list[str] = []
    for place in dict.fromkeys(places):
        try:
            names = [entry.name for entry in os.scandir(place) if _has_journal(entry.path)]
        except OSError:
            continue
        matches = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
        matches += [other for other in names if name and name in other and other not in matches][:3]
        similar += [os.path.join(place, other) if as_path else other for other in matches]
    return list(dict.fromkeys(similar))[:3]
