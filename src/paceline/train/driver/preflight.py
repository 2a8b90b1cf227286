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
from paceline._view import formatting
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
            f"num_workers={num_workers} needs about {needed} open files, but the limit of this process is {allowed}\n\n"
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
        entry = hash_file(probe, _PROBE)
    finally:
        files.remove(probe)
    if (entry.size, entry.hash) != (len(data), xxhash.xxh3_128(data).hexdigest()):
        raise StorageError(
            f"{layout.root} does not return the data written to it: wrote {len(data)} bytes, found {entry.size}\n\n"
            "hint: set RunConfig(storage_path=...) to other storage"
        )


def check_space(layout: RunLayout, run: Run, num_to_keep: int | None) -> str | None:
    """Check for space for the coming checkpoints, by the size of the last one; return a warning if it will be tight."""
    if run.latest is None:
        return None
    filesystem = os.statvfs(layout.root)
    free, size = filesystem.f_bavail * filesystem.f_frsize, run.latest.num_bytes
    if free < size:
        raise StorageError(
            f"{layout.root} has {formatting.size(free)} free, but a checkpoint of this run takes "
            f"{formatting.size(size)} ({run.latest.name})\n\n"
            f"hint: free at least {formatting.size(size - free)} there, or move the run to a larger "
            "RunConfig(storage_path=...)"
        )
    number = num_coming_checkpoints(num_to_keep, len(run.checkpoints))
    if free >= number * size:
        return None
    return (
        f"{layout.root} has {formatting.size(free)} free, but {number} more checkpoints of {formatting.size(size)} "
        f"need {formatting.size(number * size)}: free space there or lower CheckpointConfig(num_to_keep=...)"
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
        "hint: pass a checkpoint that exists, such as Result.from_path(...).checkpoint"
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
    for path in paths:
        with contextlib.suppress(OSError, UnicodeError):
            path.rmdir() if path.is_dir() else path.unlink()


def _explain_refusal(root: Path, problem: OSError | UnicodeError) -> str:
    if isinstance(problem, UnicodeError):
        return _format_refusal(root, root, "the path is not valid text", "name=...", "one without lone surrogates")
    obstacle = next((path for path in (root, *root.parents) if os.path.lexists(path)), root)
    argument = "name=..." if obstacle == root else "storage_path=..."
    if os.path.lexists(obstacle) and not obstacle.is_dir():
        reason = "not a directory" if obstacle.exists() else f"broken link to {os.readlink(obstacle)}"
        return _format_refusal(root, obstacle, reason, argument, "another path, or move that file away")
    path, reason = problem.filename or root, problem.strerror or str(problem)
    if problem.errno == errno.ENAMETOOLONG:
        longest = max(len(os.fsencode(part)) for part in root.parts)
        argument = "name=..." if longest == len(os.fsencode(root.name)) else "storage_path=..."
        return _format_refusal(root, root, reason, argument, f"names of at most 255 bytes; one has {longest}")
    advice = "a directory that this user may write to"
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "a filesystem with free space, or free some there"
    return _format_refusal(root, path, reason, "storage_path=...", advice)


def _format_refusal(root: Path, path: str | Path, reason: str, argument: str, advice: str) -> str:
    # Lone surrogates cannot be printed.
    shown_root, shown_path = (str(each).encode(errors="backslashreplace").decode() for each in (root, path))
    culprit = f"{shown_path}: " if shown_path != shown_root else ""
    return f"cannot store the run in {shown_root}: {culprit}{reason}\n\nhint: set RunConfig({argument}) to {advice}"


def _num_open_files() -> int:
    """Count the open file descriptors of this process; if the system does not say, return a typical number."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 16
