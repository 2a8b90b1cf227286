"""Where runs are kept: what a run does there is done once, with a little data, timed, and taken back.

On a disk: write and sync, read again and hash, rename, link (which a lease needs), list, delete; room and clock. In a
store: put, get and hash, list, conditional puts (which a lease needs), delete.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from paceline._commands.diagnosis.line import Line, Status, size, took
from paceline._storage.files import LocalFiles, hash_file
from paceline._storage.home import is_remote, joined
from paceline._storage.lease import SKEW_S

_GB = 10**9
LITTLE_ROOM, NO_ROOM = 10 * _GB, _GB // 10
NUM_BYTES = 4 << 20
_SKEW_S = 5.0

T = TypeVar("T")


class Timed:
    """What was done, and how long each took."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __call__(self, what: str, act: Callable[[], T]) -> T:
        began = time.perf_counter()
        answer = act()
        self.told.append(f"{what} {took(time.perf_counter() - began)}")
        return answer


def looked_at(path: str) -> Iterator[Line]:
    if is_remote(path):
        yield from _store(path)
    else:
        yield from _disk(Path(path.removeprefix("file://")).expanduser().absolute())


def _disk(path: Path) -> Iterator[Line]:
    # Missing directories are made by the first run, so they are no fault, and none is left behind.
    there = next(place for place in (path, *path.parents) if place.exists())
    about = str(path) if there == path else f"{path} (to be made in {there})"
    place = there / f".paceline-doctor-{secrets.token_hex(4)}"
    files, timed = LocalFiles(), Timed()
    try:
        place.mkdir(mode=0o700)
    except OSError as problem:
        hint = "RunConfig(storage_path=...) or PACELINE_STORAGE_PATH: a directory that this user may write to"
        yield Line("storage", "round trip", "fail", f"{about}: {problem.strerror}", hint)
        return
    try:
        yield from _tried(about, place, files, timed)
    finally:
        files.remove_tree(place)
    yield _room(there)


def _tried(about: str, place: Path, files: LocalFiles, timed: Timed) -> Iterator[Line]:
    data = secrets.token_bytes(NUM_BYTES)
    try:
        written = timed(f"write {size(NUM_BYTES)}", lambda: files.write_parts(place / "data.part", [memoryview(data)]))
        timed("rename", lambda: _renamed(files, place))
        found = timed("hash", lambda: hash_file(place / "data", "data"))
        linked = timed("link", lambda: _linked(place / "data", place / "link"))
        names = timed("list", lambda: sorted(os.listdir(place)))
        ahead_s = (place / "data").stat().st_mtime - time.time()
        timed("delete", lambda: files.remove(place / "data"))
    except OSError as problem:
        yield Line("storage", "round trip", "fail", f"{about}: {problem}", "no run can be kept there")
        return
    if (found.size, found.hash) != (written.size, written.hash) or "data" not in names:
        text = f"{about} did not give back what was written: {found.size} of {written.size} bytes"
        yield Line("storage", "round trip", "fail", text, "no run can be kept there")
        return
    yield Line("storage", "round trip", "ok", f"{about}: {', '.join(timed.told)}")
    if not linked:
        yield Line("storage", "lease", "warn", "no hard links there; a driver takes a run by making a file instead")
    yield _clock(ahead_s)


def _renamed(files: LocalFiles, place: Path) -> None:
    files.rename(place / "data.part", place / "data")
    files.sync_dir(place)


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def _clock(ahead_s: float) -> Line:
    now = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    if time.time() < 1.7e9:
        return Line("storage", "clock", "fail", f"{now}: it is not that early", "set it, or let NTP do it")
    if abs(ahead_s) > _SKEW_S:
        status: Status = "fail" if abs(ahead_s) > SKEW_S else "warn"
        text = f"{now}; the clock of the storage is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} it"
        hint = f"let NTP set both: drivers tell by it who is alive, and allow for {SKEW_S:.0f} s"
        return Line("storage", "clock", status, text, hint)
    return Line("storage", "clock", "ok", f"{now}, and that of the storage agrees")


def _room(place: Path) -> Line:
    there = os.statvfs(place)
    free, total = there.f_bavail * there.f_frsize, there.f_blocks * there.f_frsize
    text = f"{size(free)} free of {size(total)}"
    if there.f_files and not there.f_favail:
        return Line("storage", "room", "fail", f"{text}, and no file more may be made", "remove files there")
    if free < NO_ROOM:
        return Line("storage", "room", "fail", text, "free some, or keep runs elsewhere: RunConfig(storage_path=...)")
    if free < LITTLE_ROOM:
        hint = "CheckpointConfig(num_to_keep=...) and `paceline checkpoints RUN --prune` keep runs small"
        return Line("storage", "room", "warn", text, hint)
    return Line("storage", "room", "ok", text)


def _store(path: str) -> Iterator[Line]:
    from paceline._storage.address import store_at
    from paceline._storage.retrying import Patience

    store = store_at(joined(path, f".paceline-doctor-{secrets.token_hex(4)}"), None, Patience(no_progress_s=20.0))
    timed = Timed()
    where = store.uri.rpartition("/")[0]
    data = secrets.token_bytes(NUM_BYTES)
    try:
        try:
            timed(f"put {size(NUM_BYTES)}", lambda: store.write("data", data))
            back = timed("get", lambda: store.read("data"))
            keys = timed("list", lambda: [entry.key for entry in store.entries()])
            first = store.create("lease", b"one")
            second = timed("conditional put", lambda: store.create("lease", b"two"))
            tag = store.read_tagged("lease")[1]
            moved = store.replace("lease", b"three", tag)
            stale = store.replace("lease", b"four", tag)
        finally:
            timed("delete", lambda: store.delete_all(""))
    except OSError as problem:
        hint = "credentials, region and endpoint come from the store's own variables; see docs/guides/storage.md"
        yield Line("storage", "round trip", "fail", f"{where}: {problem}", hint)
        return
    if back != data or "data" not in keys:
        yield Line("storage", "round trip", "fail", f"{where} did not give back what was put there")
        return
    yield Line("storage", "round trip", "ok", f"{where}: {', '.join(timed.told)}")
    held = first and not second and moved is not None and stale is None
    if store.conditional and held:
        yield Line("storage", "lease", "ok", "conditional puts: two drivers never hold one run")
    elif store.conditional:
        yield Line("storage", "lease", "fail", "the store takes a conditional put that it has to refuse")
    else:
        hint = 'pip install "paceline[cloud]" for S3 and Azure; elsewhere take care that one driver has a run'
        yield Line("storage", "lease", "warn", "no conditional puts: two drivers may both believe that they hold", hint)
