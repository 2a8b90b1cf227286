"""Files that are made of a run because somebody asked: stacks and profiles. Written by the storage thread."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from paceline._control.flame import flame_page
from paceline._control.requests import MadeFile
from paceline._core.system import make_private_dirs
from paceline._engine.messages import Profiled
from paceline._storage.depot import Depot

KINDS = {"folded.txt": "stacks-folded", "flame.html": "flame", "trace.json.gz": "trace"}
"""Of what a worker sends, what is kept, and as what; the flame graph is drawn here."""


def stacks_written(depot: Depot, path: Path, text: str, at: float) -> MadeFile | str:
    """Add to the stacks of an attempt; where that fails, why."""
    header = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC: somebody asked\n\n"
    try:
        make_private_dirs(path.parent)
        with open(path, "a", opener=_private) as file:
            file.write(f"{header}{text}\n")
        depot.keep_file(path)
    except OSError as error:
        return f"the stacks could not be written to {path}: {error}"
    return _made(depot, "stacks", path, -1, at, 0.0)


def profile_written(depot: Depot, said: Profiled, *, at: float, number: int, seconds: float) -> list[MadeFile]:
    """What one rank has sent, in the run's directory and where the run is kept."""
    directory = depot.layout.profiles
    make_private_dirs(directory)
    stem = f"{datetime.fromtimestamp(at, UTC):%Y%m%d-%H%M%S}-{number}-rank_{said.rank}"
    contents = {name: data for name, data in said.files if name in KINDS}
    if (folded := contents.get("folded.txt")) is not None:
        title = f"{depot.layout.root.name}, rank {said.rank}"
        contents["flame.html"] = flame_page(folded.decode(errors="replace"), title).encode()
    files = []
    for name, data in contents.items():
        path = directory / f"{stem}.{name}"
        part = path.with_name(f".{path.name}.part")
        with open(part, "wb", opener=_private) as file:
            file.write(data)
        part.rename(path)
        depot.keep_file(path)
        files.append(_made(depot, KINDS[name], path, said.rank, at, seconds))
    return files


def _made(depot: Depot, kind: str, path: Path, rank: int, at: float, seconds: float) -> MadeFile:
    below = path.relative_to(depot.layout.root).as_posix()
    return MadeFile(kind=kind, path=below, rank=rank, at=at, seconds=seconds, num_bytes=path.stat().st_size)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
