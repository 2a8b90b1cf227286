"""Check the storage path: do once, with little data, what a run does there; time each step and clean up.

On a disk: write and sync, read and hash, rename, hard link (needed for the lease), list, delete, speed, free space and
clock.
In a store: put, get and hash, list, conditional put (needed for the lease), delete.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from paceline._commands.diagnosis import DiagnosisLine, Status, format_duration, format_size
from paceline._storage.file_writer import LargeFileWriter
from paceline._storage.files import LocalFiles, hash_file
from paceline._storage.lease import MAX_CLOCK_SKEW_S
from paceline._storage.run_location import is_remote, join_storage_path

_line = partial(DiagnosisLine, "storage")

_GB = 10**9
LITTLE_ROOM, NO_ROOM = 10 * _GB, _GB // 10
NUM_BYTES = 4 << 20
SLOW_MB_S = 50.0
_SPEED_S, _SPEED_BYTES = 1.0, 256 << 20
"""The speed is measured until either has passed."""
_SKEW_S = 5.0

T = TypeVar("T")


class StepTimer(list[str]):
    """Times named steps, and lists them with their times."""

    def __call__(self, name: str, act: Callable[[], T]) -> T:
        began = time.perf_counter()
        answer = act()
        self.append(f"{name} {format_duration(time.perf_counter() - began)}")
        return answer


def check_storage(path: str) -> Iterator[DiagnosisLine]:
    if is_remote(path):
        yield from _check_store(path)
    else:
        yield from _check_disk(Path(path.removeprefix("file://")).expanduser().absolute())


def _check_disk(path: Path) -> Iterator[DiagnosisLine]:
    # The first run creates missing directories, so they are no error. The check leaves none behind.
    existing = next(each for each in (path, *path.parents) if each.exists())
    label = str(path) if existing == path else f"{path} (to be created in {existing})"
    directory = existing / f".paceline-doctor-{secrets.token_hex(4)}"
    files = LocalFiles()
    try:
        directory.mkdir(mode=0o700)
    except OSError as problem:
        hint = "RunConfig(storage_path=...) or PACELINE_STORAGE_PATH: a directory that this user may write to"
        yield _line("round trip", "fail", f"{label}: {problem.strerror}", hint)
        return
    try:
        yield from _check_round_trip(label, directory, files)
        yield _check_speed(directory / "speed")
    finally:
        files.remove_tree(directory)
    yield _check_free_space(existing)


def _check_round_trip(label: str, directory: Path, files: LocalFiles) -> Iterator[DiagnosisLine]:
    timed, bytes_ = StepTimer(), memoryview(secrets.token_bytes(NUM_BYTES))
    part, data = directory / "data.part", directory / "data"

    def rename_durably() -> None:
        files.rename(part, data)
        files.sync_dir(directory)

    try:
        written = timed(f"write {format_size(NUM_BYTES)}", lambda: files.write_parts(part, [bytes_], NUM_BYTES))
        timed("rename", rename_durably)
        found = timed("hash", lambda: hash_file(data, "data"))
        linked = timed("link", lambda: _try_link(data, directory / "link"))
        names = timed("list", lambda: sorted(os.listdir(directory)))
        ahead_s = data.stat().st_mtime - time.time()
        timed("delete", lambda: files.remove(data))
    except OSError as problem:
        yield _line("round trip", "fail", f"{label}: {problem}", "runs cannot be stored there")
        return
    if (found.size, found.hash) != (written.size, written.hash) or "data" not in names:
        text = f"{label} returned different data than was written: {found.size} of {written.size} bytes"
        yield _line("round trip", "fail", text, "runs cannot be stored there")
        return
    yield _line("round trip", "ok", f"{label}: {', '.join(timed)}")
    if not linked:
        yield _line("lease", "warn", "no hard links there; a driver acquires a run by creating a file instead")
    yield _check_clock(ahead_s)


def _check_speed(path: Path) -> DiagnosisLine:
    """Write and sync a large file, as those of checkpoints are."""
    data, num_bytes = memoryview(secrets.token_bytes(NUM_BYTES)), 0
    limit = max(1, min(_SPEED_BYTES, shutil.disk_usage(path.parent).free // 10))
    began = time.perf_counter()
    try:
        with LargeFileWriter(path, limit) as writer:
            while num_bytes < limit and time.perf_counter() - began < _SPEED_S:
                writer.add(data)
                num_bytes += len(data)
            writer.finish(path.name)
    except OSError as problem:
        return _line("disk speed", "fail", str(problem), "runs cannot be stored there")
    return _describe_speed(num_bytes, time.perf_counter() - began)


def _describe_speed(num_bytes: int, took_s: float) -> DiagnosisLine:
    mb_s = num_bytes / took_s / 1e6
    text = f"{mb_s:.0f} MB/s, written and synced"
    if mb_s < SLOW_MB_S:
        hint = "store runs on a faster disk, or save in the background: CheckpointUploadMode.ASYNC"
        return _line("disk speed", "warn", f"{text}: {1000 / mb_s:.0f} s for a checkpoint of 1 GB", hint)
    return _line("disk speed", "ok", text)


def _try_link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def _check_clock(ahead_s: float) -> DiagnosisLine:
    now = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    if time.time() < 1.7e9:
        return _line("clock", "fail", f"{now} is in the past", "set the clock, or use NTP")
    if abs(ahead_s) > _SKEW_S:
        status: Status = "fail" if abs(ahead_s) > MAX_CLOCK_SKEW_S else "warn"
        text = f"{now}; the clock of the storage is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} it"
        hint = f"use NTP on both: drivers use the clock to detect dead drivers, and tolerate {MAX_CLOCK_SKEW_S:.0f} s"
        return _line("clock", status, text, hint)
    return _line("clock", "ok", f"{now}; the clock of the storage agrees")


def _check_free_space(directory: Path) -> DiagnosisLine:
    stats = os.statvfs(directory)
    free, total = stats.f_bavail * stats.f_frsize, stats.f_blocks * stats.f_frsize
    text = f"{format_size(free)} free of {format_size(total)}"
    if stats.f_files and not stats.f_favail:
        return _line("room", "fail", f"{text}, no more files can be created", "remove files there")
    if free < NO_ROOM:
        return _line("room", "fail", text, "free some, or store runs elsewhere: RunConfig(storage_path=...)")
    if free < LITTLE_ROOM:
        hint = "CheckpointConfig(num_to_keep=...) and `paceline checkpoints RUN --prune` keep runs small"
        return _line("room", "warn", text, hint)
    return _line("room", "ok", text)


def _check_store(path: str) -> Iterator[DiagnosisLine]:
    from paceline._storage.address import open_store_at
    from paceline._storage.retrying_store import StoreRetryPolicy

    place = join_storage_path(path, f".paceline-doctor-{secrets.token_hex(4)}")
    store = open_store_at(place, None, StoreRetryPolicy(stall_timeout_s=20.0))
    timed = StepTimer()
    uri = store.uri.rpartition("/")[0]
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
        yield _line("round trip", "fail", f"{uri}: {problem}", hint)
        return
    if back != data or "data" not in keys:
        yield _line("round trip", "fail", f"{uri} returned different data than was put there")
        return
    yield _line("round trip", "ok", f"{uri}: {', '.join(timed)}")
    is_exclusive = first and not second and moved is not None and stale is None
    if store.has_conditional_puts and is_exclusive:
        yield _line("lease", "ok", "conditional puts: two drivers never hold one run")
    elif store.has_conditional_puts:
        yield _line("lease", "fail", "the store accepts a conditional put that it must refuse")
    else:
        hint = 'pip install "paceline[cloud]" for S3 and Azure; elsewhere make sure that a run has only one driver'
        yield _line("lease", "warn", "no conditional puts: two drivers may both believe they hold", hint)
