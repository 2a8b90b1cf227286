"""Writes the files that people request from a run: stacks and profiles. Runs on the storage thread."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from paceline._control.flame_graph import render_flame_page
from paceline._control.requests import DiagnosticFile
from paceline._core.system import make_private_dirs
from paceline._engine.messages import ProfileRecorded
from paceline._storage.run_store import RunStore

KINDS = {"folded.txt": "stacks-folded", "flame.html": "flame", "trace.json.gz": "trace"}
"""Files from a worker that are kept, and their kind; the flame graph is rendered here."""


def write_stacks_file(depot: RunStore, path: Path, text: str, at: float) -> DiagnosticFile | str:
    """Append to the stacks file of an attempt. If that fails, return the reason."""
    header = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC: somebody asked\n\n"
    try:
        make_private_dirs(path.parent)
        with open(path, "a", opener=_open_private) as file:
            file.write(f"{header}{text}\n")
        depot.upload_file(path)
    except OSError as error:
        return f"the stacks could not be written to {path}: {error}"
    return _describe_file(depot, "stacks", path, -1, at, 0.0)


def write_profile_files(
    depot: RunStore, said: ProfileRecorded, *, at: float, number: int, seconds: float
) -> list[DiagnosticFile]:
    """Write the files from one rank to the run's directory and upload them."""
    directory = depot.layout.profiles
    make_private_dirs(directory)
    stem = f"{datetime.fromtimestamp(at, UTC):%Y%m%d-%H%M%S}-{number}-rank_{said.rank}"
    contents = {name: data for name, data in said.files if name in KINDS}
    if (folded := contents.get("folded.txt")) is not None:
        title = f"{depot.layout.root.name}, rank {said.rank}"
        contents["flame.html"] = render_flame_page(folded.decode(errors="replace"), title).encode()
    files = []
    for name, data in contents.items():
        path = directory / f"{stem}.{name}"
        part = path.with_name(f".{path.name}.part")
        with open(part, "wb", opener=_open_private) as file:
            file.write(data)
        part.rename(path)
        depot.upload_file(path)
        files.append(_describe_file(depot, KINDS[name], path, said.rank, at, seconds))
    return files


def _describe_file(depot: RunStore, kind: str, path: Path, rank: int, at: float, seconds: float) -> DiagnosticFile:
    below = path.relative_to(depot.layout.root).as_posix()
    return DiagnosticFile(kind=kind, path=below, rank=rank, at=at, seconds=seconds, num_bytes=path.stat().st_size)


def _open_private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
