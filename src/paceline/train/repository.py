"""The git repository that a directory is in: commit and branch, read from its files; only for changes git is asked."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from typing import Any

from paceline._core.plain import printable

_ANSWER_S = 1.0
_KEPT_S = 60.0
"""So long an answer of git's holds: a search asks for each of its trials."""

_asked: dict[Path, tuple[float, bool | None]] = {}


def repository_of(directory: Path) -> dict[str, Any] | None:
    """`commit`, `branch` (None where none is checked out) and `dirty`: files differ from the commit (None: unknown).

    None where it is in no repository that can be read.
    """
    for root in (directory, *directory.parents):
        marker = root / ".git"
        if marker.exists():
            break
    else:
        return None
    try:
        own = _own_directory(marker)
        head = (own / "HEAD").read_text().strip()
        common = own / "commondir"
        shared = (own / common.read_text().strip()).resolve() if common.exists() else own
        if not head.startswith("ref:"):
            return {"commit": head[:64], "branch": None, "dirty": _is_dirty(root)}
        ref = head.removeprefix("ref:").strip()
        commit = _commit_at(ref, (own, shared))
    except (OSError, ValueError):
        return None
    return {"commit": commit, "branch": printable(ref.removeprefix("refs/heads/")), "dirty": _is_dirty(root)}


def _own_directory(marker: Path) -> Path:
    """Where a worktree keeps what is its own; its `.git` is a file that says so."""
    if marker.is_dir():
        return marker
    return (marker.parent / marker.read_text().removeprefix("gitdir:").strip()).resolve()


def _commit_at(ref: str, places: tuple[Path, ...]) -> str:
    """Empty where there is none yet."""
    if not re.fullmatch(r"refs/[^\0]+", ref) or ".." in ref:
        return ""
    for place in places:
        file = place / ref
        if file.is_file():
            return file.read_text().strip()[:64]
    packed = places[-1] / "packed-refs"
    for line in packed.read_text().splitlines() if packed.is_file() else ():
        commit, _, name = line.partition(" ")
        if name == ref:
            return commit
    return ""


def _is_dirty(root: Path) -> bool | None:
    at, answer = _asked.get(root, (float("-inf"), None))
    if time.monotonic() - at >= _KEPT_S:
        answer = _differs(root)
        _asked[root] = time.monotonic(), answer
    return answer


def _differs(root: Path) -> bool | None:
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(root)]
    try:
        told = subprocess.run(
            [*command, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_ANSWER_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return bool(told.stdout.strip()) if told.returncode == 0 else None
