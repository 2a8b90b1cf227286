"""What commands take alike: a parser with an example, `--json`, and a run by path, by address or by name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from paceline._commands import telling
from paceline._core import settings
from paceline._storage.home import Home, is_remote, joined
from paceline._storage.segments import PREFIX

RUN = "its directory, its address (s3://...), or its name under the storage path"
_JOURNAL = "journal.jsonl"
_SEARCH = b'{"type":"SearchStarted"'


CODES = "0 fine, 2 bad usage or not found"


class NoRunError(ValueError):
    """What was given names no run."""


class Parser(argparse.ArgumentParser):
    """One command's: texts as they stand, and examples at the end."""

    def __init__(self, command: str, description: str, *examples: str, codes: str = CODES) -> None:
        told = "Example:" if len(examples) == 1 else "Examples:"
        shown = "\n".join((told, *(f"  {example}" for example in examples)))
        super().__init__(
            prog=f"paceline {command}",
            description=telling.folded(" ".join(description.split()), 79),
            epilog=f"{shown}\n\n{telling.folded(f'Exit code: {codes}', 79)}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def add_run(self, name: str = "run", metavar: str = "RUN") -> None:
        self.add_argument(name, metavar=metavar, help=RUN)

    def add_json(self) -> None:
        self.add_argument("--json", action="store_true", help="print one JSON document")


def natural(text: str) -> int:
    """For `type=`: 1 or more."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return number


def whole(text: str) -> int:
    """For `type=`: 0 or more."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return number


def home_of(run: str, *, or_search: bool = False) -> Home:
    """Where a run is kept that was given by path, address or name; `NoRunError` where there is none."""
    home = _found(run)
    if not or_search and holds_search(home):
        raise NoRunError(
            f"{run} is a search, and its trials are runs\n\n"
            f"hint: `paceline show {run}` lists them; give one of them, such as {run}/trial_00000"
        )
    return home


def holds_search(home: Home) -> bool:
    """Whether what is kept there is a search, by how its journal begins."""
    if home.address is None:
        with open(home.layout.journal, "rb") as file:
            start = file.read(64)
    else:
        store = home.store()
        start = store.read(store.entries(PREFIX)[0].key)
    return start[9:].startswith(_SEARCH)


def search_above(home: Home) -> Home | None:
    """The search that a run is a trial of; None where it is a run of its own."""
    if home.address is not None and "/" not in home.storage_path.partition("?")[0].partition("://")[2].strip("/"):
        return None  # It lies at the top of a bucket.
    above = Home.of_path(home.storage_path, home.filesystem)
    there = _holds_run(above.uri) if above.address is None else bool(above.store().entries(PREFIX))
    return above if there and holds_search(above) else None


def _found(run: str) -> Home:
    if is_remote(run):
        home = Home.of_path(run)
        if not home.store().entries(PREFIX):
            raise NoRunError(f"there is no run in {home.uri}")
        return home
    path = os.path.abspath(os.path.expanduser(run.removeprefix("file://")))
    if _holds_run(path):
        return Home.of_path(path)
    root = settings.default_storage_path()
    if is_remote(root):
        home = Home.of_path(joined(root, run.strip("/")))
        if not os.path.isabs(run) and home.store().entries(PREFIX):
            return home
        raise NoRunError(f"there is no run {run!r}, neither here nor in {root}")
    named = os.path.join(root, run)
    if not os.path.isabs(os.path.expanduser(run)) and ".." not in run.split("/") and _holds_run(named):
        return Home.of_path(named)
    raise NoRunError(_not_found(run, path, root))


def root_of(path: str | None) -> str:
    """A path or address whose runs are listed; the storage path where none is given."""
    if path is None:
        return settings.default_storage_path()
    if is_remote(path):
        return path
    local = os.path.abspath(os.path.expanduser(path.removeprefix("file://")))
    if not os.path.isdir(local):
        raise NoRunError(f"{path} is not a directory")
    return local


def tell_summary(home: Home) -> None:
    """What came of a run, as one JSON document."""
    from paceline._view.reading import RunReader

    reader = RunReader(home)
    reader.refresh()
    telling.json(reader.summary())


def _holds_run(path: str) -> bool:
    return os.path.exists(os.path.join(path, _JOURNAL))


def _not_found(run: str, path: str, root: str) -> str:
    given_as_path = "/" in run or run.startswith((".", "~"))
    if os.path.isdir(path) and given_as_path:
        said = f"there is no run in {path}: it has no journal"
    elif given_as_path:
        said = f"there is no run at {path}"
    else:
        said = f"there is no run {run!r}, neither here nor in {root}"
    near = _near(os.path.basename(path), given_as_path, (os.path.dirname(path), root, os.getcwd()))
    if near:
        return f"{said}\n\nhint: did you mean {' or '.join(near)}?"
    return f"{said}\n\nhint: `paceline ls` lists the runs in {root}, `paceline ls PATH` those in another place"


def _near(name: str, as_path: bool, places: Sequence[str]) -> list[str]:
    """Names of runs that are like this one, the nearest places first; as they were asked for, by path or by name."""
    import difflib

    found: list[str] = []
    for place in dict.fromkeys(places):
        try:
            names = [entry.name for entry in os.scandir(place) if _holds_run(entry.path)]
        except OSError:
            continue
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
        near += [other for other in names if name and name in other and other not in near][:3]
        found += [os.path.join(place, other) if as_path else other for other in near]
    return list(dict.fromkeys(found))[:3]
