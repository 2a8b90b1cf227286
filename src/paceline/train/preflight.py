"""Checks before any worker starts: a run that cannot work fails at once and leaves nothing behind.

Each error contains the value, the system's reason, and the setting to change. Checks that other modules make where a
value is given (arguments, GPUs, pickling of the function, the lease of the run) are not repeated here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import secrets
from collections.abc import Iterator
from pathlib import Path

from paceline._control.run import Run
from paceline._core.errors import RunHeldError, StorageError
from paceline._storage.commit import iter_manifests
from paceline._storage.files import Files, hash_file
from paceline._storage.run_layout import RunLayout
from paceline.train.checkpoint import Checkpoint

_PROBE = ".preflight"
FIRST_LEASE = "000001.json"
_FILES_PER_DRIVER = 24
"""File descriptors of a driver beside those of its workers: journal, lease, selector, sockets to the zygote."""
_FILES_PER_WORKER = 2


def check_limits(num_workers: int) -> None:
    """Check that there are enough file descriptors for the sockets and processes of the workers."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _num_open_files() + _FILES_PER_DRIVER + _FILES_PER_WORKER * num_workers
    if allowed != resource.RLIM_INFINITY and needed > allowed:
        raise ValueError(
            f"num_workers={num_workers} needs about {needed} open files, and this process may have {allowed}\n\n"
            f"hint: run `ulimit -n {max(1024, 2 * needed)}` before the script, or lower num_workers"
        )


@contextlib.contextmanager
def clean_up_on_refusal(layout: RunLayout) -> Iterator[None]:
    """If the run cannot be opened in this block and the lease is released, remove what was created for it."""
    missing = _missing_directories(layout.root)
    before = {path for path in (layout.lease, layout.journal) if os.path.lexists(path)}
    try:
        yield
    except BaseException as problem:
        if not isinstance(problem, RunHeldError):
            # Another driver may start meanwhile. It takes the second lease number, and none of its files are removed.
            new = [layout.lease / FIRST_LEASE, layout.lease, layout.journal]
            _remove_created([path for path in new if not before & {path, path.parent}])
        _remove_created(missing)
        if isinstance(problem, StorageError) or not isinstance(problem, OSError | UnicodeError):
            raise
        raise StorageError(_explain_refusal(layout.root, problem)) from problem


def check_storage(files: Files, layout: RunLayout) -> None:
    """Write a few bytes into the run's directory, read them back, and remove them."""
    import xxhash

    probe = layout.root / _PROBE
    data = secrets.token_bytes(64)
    try:
        files.write(probe, data)
        found = hash_file(probe, _PROBE)
    finally:
        files.remove(probe)
    if (found.size, found.hash) != (len(data), xxhash.xxh3_128(data).hexdigest()):
        raise StorageError(
            f"{layout.root} did not give back what was written to it: {found.size} bytes, {len(data)} were written\n\n"
            "hint: this storage cannot keep a run; set RunConfig(storage_path=...) to another"
        )


def check_space(layout: RunLayout, run: Run, num_to_keep: int | None) -> str | None:
    """Check for space for the coming checkpoints, by the size of the last one; return a warning if it will be tight."""
    if run.latest is None:
        return None
    there = os.statvfs(layout.root)
    free, size = there.f_bavail * there.f_frsize, run.latest.num_bytes
    if free < size:
        raise StorageError(
            f"{layout.root} has {_format_bytes(free)} free, and a checkpoint of this run takes {_format_bytes(size)} "
            f"({run.latest.name})\n\n"
            f"hint: free at least {_format_bytes(size - free)} there, or move the run to a larger "
            "RunConfig(storage_path=...)"
        )
    number = num_coming_checkpoints(num_to_keep, len(run.checkpoints))
    if free >= number * size:
        return None
    return (
        f"{layout.root} has {_format_bytes(free)} free and {_format_bytes(number * size)} will be "
        f"needed, for {number} more "
        f"checkpoints of {_format_bytes(size)}: free some there, or set CheckpointConfig(num_to_keep=...) lower"
    )


def num_coming_checkpoints(num_to_keep: int | None, num_kept: int) -> int:
    """How many more checkpoints will exist at once: a new one is complete before an old one is deleted."""
    return 2 if num_to_keep is None else max(1, num_to_keep + 1 - num_kept)


def check_initial_checkpoint(initial: Checkpoint | None, layout: RunLayout) -> None:
    """Check that the initial checkpoint exists, unless the run has one of its own to resume from."""
    if initial is None or not initial.is_local or os.path.isdir(initial.path) or any(iter_manifests(layout)):
        return
    raise StorageError(
        f"resume_from_checkpoint: {initial.path} is not a directory\n\n"
        "hint: give a checkpoint that exists, such as Result.from_path(...).checkpoint"
    )


def _missing_directories(path: Path) -> list[Path]:
    """The directories that must be created for this one, innermost first."""
    missing = []
    with contextlib.suppress(OSError, UnicodeError):
        while not os.path.lexists(path) and path != path.parent:
            missing.append(path)
            path = path.parent
    return missing


def _remove_created(paths: list[Path]) -> None:
    """Remove created files and directories that still exist; directories only if empty."""
    for path in paths:
        with contextlib.suppress(OSError, UnicodeError):
            path.rmdir() if path.is_dir() else path.unlink()


def _explain_refusal(root: Path, problem: OSError | UnicodeError) -> str:
    if isinstance(problem, UnicodeError):
        return _format_refusal(root, root, "it is not valid text for a path", "name=...", "one without lone surrogates")
    in_the_way = next((path for path in (root, *root.parents) if os.path.lexists(path)), root)
    argument = "name=..." if in_the_way == root else "storage_path=..."
    if os.path.lexists(in_the_way) and not in_the_way.is_dir():
        reason = "it is a file and not a directory"
        if not in_the_way.exists():
            reason = f"it is a link to {os.readlink(in_the_way)}, which does not exist"
        return _format_refusal(root, in_the_way, reason, argument, "another, or move that away")
    at, reason = problem.filename or root, problem.strerror or str(problem)
    if problem.errno == errno.ENAMETOOLONG:
        longest = max(len(os.fsencode(part)) for part in root.parts)
        argument = "name=..." if longest == len(os.fsencode(root.name)) else "storage_path=..."
        return _format_refusal(root, root, reason, argument, f"names of at most 255 bytes; one has {longest}")
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return _format_refusal(root, at, reason, "storage_path=...", "a place with room, or free some there")
    return _format_refusal(root, at, reason, "storage_path=...", "a directory that this user may write to")


def _format_refusal(root: Path, at: str | Path, reason: str, argument: str, to: str) -> str:
    # Lone surrogates cannot be printed.
    place, there = (str(path).encode(errors="backslashreplace").decode() for path in (root, at))
    first = f"the run cannot be kept in {place}: {reason}"
    if place != there:
        first = f"the run cannot be kept in {place}: {there}: {reason}"
    return f"{first}\n\nhint: set RunConfig({argument}) to {to}"


def _num_open_files() -> int:
    """Count the open file descriptors of this process; if the system does not say, return a typical number."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 16


def _format_bytes(number: int) -> str:
    value = float(number)
    for unit in ("bytes", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
