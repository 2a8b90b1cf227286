"""When, where and with which versions something was measured."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

import paceline

ROOT = Path(__file__).resolve().parents[1]


def circumstances(storage: Path) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": shlex.join(relative_command(["python", *sys.argv])),
        "commit": _commit(),
        "machine": {
            "system": f"{platform.system()} {platform.release().partition('-')[0]}",
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
            "filesystem": _filesystem(storage),
            "load_average": os.getloadavg(),
        },
        # Not from package metadata: a source tree on PYTHONPATH has none.
        "versions": {"python": platform.python_version(), "paceline": paceline.__version__}
        | {name: importlib.metadata.version(name) for name in ("torch", "numpy", "msgspec")},
    }


def relative_command(command: Sequence[str]) -> list[str]:
    """A command with paths relative to the repository's root."""
    words = []
    for word in command:
        path = Path(word)
        inside = path.is_absolute() and path.is_relative_to(ROOT)
        words.append(str(path.relative_to(ROOT)) if inside else word)
    return words


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _filesystem(path: Path) -> str:
    mounts = [(m.mountpoint, m.fstype) for m in psutil.disk_partitions(all=True) if path.is_relative_to(m.mountpoint)]
    return max(mounts, key=lambda mount: len(mount[0]))[1] if mounts else "unknown"


def _commit() -> str | None:
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        changed = _git("--no-optional-locks", "status", "--porcelain", "--untracked-files=no")
        return _git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
    return None


def _git(*arguments: str) -> str:
    answer = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return answer.stdout.strip()
