"""Check the storage path: do once, with little data, what a run does there; time each step and clean up.

On a disk: write and sync, read and hash, rename, hard link (needed for the lease), list, delete, free space and clock.
In a store: put, get and hash, list, conditional put (needed for the lease), delete.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from paceline._commands.diagnosis.check_result import DiagnosisLine, Status, format_duration, format_size
from paceline._storage.files import LocalFiles, hash_file
from paceline._storage.lease import MAX_CLOCK_SKEW_S
from paceline._storage.run_location import is_remote, join_storage_path

_GB = 10**9
LITTLE_ROOM, NO_ROOM = 10 * _GB, _GB // 10
NUM_BYTES = 4 << 20
_SKEW_S = 5.0

T = TypeVar("T")


class StepTimer:
    """Times named steps."""

    def __init__(self) -> None:
        self.timings: list[str] = []

    def __call__(self, what: str, act: Callable[[], T]) -> T:
        began = time.perf_counter()
        answer = act()
        self.timings.append(f"{what} {format_duration(time.perf_counter() - began)}")
        return answer


def check_storage(path: str) -> Iterator[DiagnosisLine]:
    if is_remote(path):
        yield from _check_store(path)
    else:
        yield from _check_disk(Path(path.removeprefix("file://")).expanduser().absolute())


def _check_disk(path: Path) -> Iterator[DiagnosisLine]:
    # The first run creates missing directories, so they are no error. The check leaves none behind.
    there = next(place for place in (path, *path.parents) if place.exists())
    about = str(path) if there == path else f"{path} (to be made in {there})"
    place = there / f".paceline-doctor-{secrets.token_hex(4)}"
    files, timed = LocalFiles(), StepTimer()
    try:
        place.mkdir(mode=0o700)
    except OSError as problem:
        hint = "RunConfig(storage_path=...) or PACELINE_STORAGE_PATH: a directory that this user may write to"
        yield DiagnosisLine("storage", "round trip", "fail", f"{about}: {problem.strerror}", hint)
        return
    try:
        yield from _check_round_trip(about, place, files, timed)
    finally:
        files.remove_tree(place)
    yield _check_free_space(there)


def _check_round_trip(about: str, place: Path, files: LocalFiles, timed: StepTimer) -> Iterator[DiagnosisLine]:
    data = secrets.token_bytes(NUM_BYTES)
    try:
        written = timed(
            f"write {format_size(NUM_BYTES)}", lambda: files.write_parts(place / "data.part", [memoryview(data)])
        )
        timed("rename", lambda: _rename_durably(files, place))
        found = timed("hash", lambda: hash_file(place / "data", "data"))
        linked = timed("link", lambda: _try_link(place / "data", place / "link"))
        names = timed("list", lambda: sorted(os.listdir(place)))
        ahead_s = (place / "data").stat().st_mtime - time.time()
        timed("delete", lambda: files.remove(place / "data"))
    except OSError as problem:
        yield DiagnosisLine("storage", "round trip", "fail", f"{about}: {problem}", "no run can be kept there")
        return
    if (found.size, found.hash) != (written.size, written.hash) or "data" not in names:
        text = f"{about} did not give back what was written: {found.size} of {written.size} bytes"
        yield DiagnosisLine("storage", "round trip", "fail", text, "no run can be kept there")
        return
    yield DiagnosisLine("storage", "round trip", "ok", f"{about}: {', '.join(timed.timings)}")
    if not linked:
        yield DiagnosisLine(
            "storage", "lease", "warn", "no hard links there; a driver takes a run by making a file instead"
        )
    yield _check_clock(ahead_s)


def _rename_durably(files: LocalFiles, place: Path) -> None:
    files.rename(place / "data.part", place / "data")
    files.sync_dir(place)


def _try_link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def _check_clock(ahead_s: float) -> DiagnosisLine:
    now = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    if time.time() < 1.7e9:
        return DiagnosisLine("storage", "clock", "fail", f"{now}: it is not that early", "set it, or let NTP do it")
    if abs(ahead_s) > _SKEW_S:
        status: Status = "fail" if abs(ahead_s) > MAX_CLOCK_SKEW_S else "warn"
        text = f"{now}; the clock of the storage is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} it"
        hint = f"let NTP set both: drivers tell by it who is alive, and allow for {MAX_CLOCK_SKEW_S:.0f} s"
        return DiagnosisLine("storage", "clock", status, text, hint)
    return DiagnosisLine("storage", "clock", "ok", f"{now}, and that of the storage agrees")


def _check_free_space(place: Path) -> DiagnosisLine:
    there = os.statvfs(place)
    free, total = there.f_bavail * there.f_frsize, there.f_blocks * there.f_frsize
    text = f"{format_size(free)} free of {format_size(total)}"
    if there.f_files and not there.f_favail:
        return DiagnosisLine("storage", "room", "fail", f"{text}, and no file more may be made", "remove files there")
    if free < NO_ROOM:
        return DiagnosisLine(
            "storage", "room", "fail", text, "free some, or keep runs elsewhere: RunConfig(storage_path=...)"
        )
    if free < LITTLE_ROOM:
        hint = "CheckpointConfig(num_to_keep=...) and `paceline checkpoints RUN --prune` keep runs small"
        return DiagnosisLine("storage", "room", "warn", text, hint)
    return DiagnosisLine("storage", "room", "ok", text)


def _check_store(path: str) -> Iterator[DiagnosisLine]:
    from paceline._storage.address import open_store_at
    from paceline._storage.retrying_store import StoreRetryPolicy

    store = open_store_at(
        join_storage_path(path, f".paceline-doctor-{secrets.token_hex(4)}"),
        None,
        StoreRetryPolicy(stall_timeout_s=20.0),
    )
    timed = StepTimer()
    where = store.uri.rpartition("/")[0]
    data = secrets.token_bytes(NUM_BYTES)
    try:
        try:
            timed(f"put {format_size(NUM_BYTES)}", lambda: store.write("data", data))
            back = timed("get", lambda: store.read("data"))
            keys = timed("list", lambda: [entry.key for entry in store.list_entries()])
            first = store.create("lease", b"one")
            second = timed("conditional put", lambda: store.create("lease", b"two"))
            tag = store.read_tagged("lease")[1]
            moved = store.replace("lease", b"three", tag)
            stale = store.replace("lease", b"four", tag)
        finally:
            timed("delete", lambda: store.delete_all(""))
    except OSError as problem:
        hint = "credentials, region and endpoint come from the store's own variables; see docs/guides/storage.md"
        yield DiagnosisLine("storage", "round trip", "fail", f"{where}: {problem}", hint)
        return
    if back != data or "data" not in keys:
        yield DiagnosisLine("storage", "round trip", "fail", f"{where} did not give back what was put there")
        return
    yield DiagnosisLine("storage", "round trip", "ok", f"{where}: {', '.join(timed.timings)}")
    held = first and not second and moved is not None and stale is None
    if store.has_conditional_puts and held:
        yield DiagnosisLine("storage", "lease", "ok", "conditional puts: two drivers never hold one run")
    elif store.has_conditional_puts:
        yield DiagnosisLine("storage", "lease", "fail", "the store takes a conditional put that it has to refuse")
    else:
        hint = 'pip install "paceline[cloud]" for S3 and Azure; elsewhere take care that one driver has a run'
        yield DiagnosisLine(
            "storage", "lease", "warn", "no conditional puts: two drivers may both believe that they hold", hint
        )
