"""Replaces a file of a run, such that a driver that was paused never replaces one that its successor has written.

A check of the lease and the rename after it are two acts, and a driver may be paused between them for longer than its
lease lasts. So the new file is complete before the check, under a name with the driver's lease number, and every driver
first removes what those before it have prepared: the rename of one that wakes up finds nothing to rename.
"""

from __future__ import annotations

import re
from pathlib import Path

from paceline._storage.files import Files
from paceline._storage.lease import Fence

_NUMBER = re.compile(r".*?(?:\.(\d+))?\.part")


def prepared_path(target: Path, fence: Fence) -> Path:
    """Return where a driver writes what is to replace a file."""
    return target.with_name(f"{target.name}.{fence.number}.part")


def replace_file(files: Files, target: Path, fence: Fence) -> None:
    """Replace a file by the prepared one, unless another driver has taken the run: then raise `RunHeldError`."""
    fence.check()
    try:
        files.rename(prepared_path(target, fence), target)
    except FileNotFoundError:
        fence.check()  # The driver that took over has removed it.
        raise


def remove_prepared(files: Files, directory: Path, prefix: str, fence: Fence) -> None:
    """Remove what earlier drivers have prepared to replace files whose names begin with `prefix`.

    Call it once the lease is acquired, before reading the files.
    """
    for path in directory.glob(f"{prefix}*.part"):
        match = _NUMBER.fullmatch(path.name)
        if match is not None and int(match[1] or 0) < fence.number:
            files.remove(path)
