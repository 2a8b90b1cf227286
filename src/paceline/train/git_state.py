"""The git repository of a directory: commit and branch, read from its files. Runs git only to detect changes."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from typing import Any

from paceline._core.plain_values import to_printable

_GIT_TIMEOUT_S = 1.0
_CACHE_S = 60.0
"""How long an answer from git is cached, because a search asks for each of its trials."""

_dirty_cache: dict[Path, tuple[float, bool | None]] = {}


def read_git_state(directory: Path) -> dict[str, Any] | None:
    """Return `commit`, `branch` (None if detached) and `dirty`: files differ from the commit (None: unknown).

    Return None if the directory is in no readable repository.
    """
    for root in (directory, *directory.parents):
        marker = root / ".git"
        if marker.exists():
            break
    else:
        return None
    try:
        own = _find_git_directory(marker)
        head = (own / "HEAD").read_text().strip()
        common = own / "commondir"
        shared = (own / common.read_text().strip()).resolve() if common.exists() else own
        if not head.startswith("ref:"):
            return {"commit": head[:64], "branch": None, "dirty": _is_dirty(root)}
        ref = head.removeprefix("ref:").strip()
        commit = _read_commit(ref, (own, shared))
    except (OSError, ValueError):
        return None
    return {"commit": commit, "branch": to_printable(ref.removeprefix("refs/heads/")), "dirty": _is_dirty(root)}


def _find_git_directory(marker: Path) -> Path:
    """Return the git directory. In a worktree, `.git` is a file with its path."""
    if marker.is_dir():
        return marker
    return (marker.parent / marker.read_text().removeprefix("gitdir:").strip()).resolve()


def _read_commit(ref: str, places: tuple[Path, ...]) -> str:
    """Return the commit of a ref, or an empty string if it has none yet."""
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
    at, answer = _dirty_cache.get(root, (float("-inf"), None))
    if time.monotonic() - at >= _CACHE_S:
        answer = _has_changes(root)
        _dirty_cache[root] = time.monotonic(), answer
    return answer


def _has_changes(root: Path) -> bool | None:
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(root)]
    try:
        told = subprocess.run(
            [*command, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return bool(told.stdout.strip()) if told.returncode == 0 else None
