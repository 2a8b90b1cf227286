"""One driver at a time. The lease is a lock that the kernel takes back when its holder dies."""

from __future__ import annotations

import fcntl
import os
import socket
from datetime import datetime
from pathlib import Path

import msgspec

from paceline._core.errors import RunHeldError


class Holder(msgspec.Struct, frozen=True):
    pid: int
    host: str
    since: float
    number: int
    """Counts the drivers that have held the run."""


class Lease:
    """Held from construction to `close`; `RunHeldError` where another driver holds it."""

    def __init__(self, path: Path, wall: float) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read(self._fd)
            os.close(self._fd)
            raise RunHeldError(_message(path.parent, holder)) from None
        last = _read(self._fd)
        self.holder = Holder(os.getpid(), socket.gethostname(), wall, (last.number if last else 0) + 1)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, msgspec.json.encode(self.holder), 0)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _read(fd: int) -> Holder | None:
    try:
        return msgspec.json.decode(os.pread(fd, 4096, 0), type=Holder)
    except msgspec.MsgspecError:
        return None


def _message(root: Path, holder: Holder | None) -> str:
    who = "another driver"
    if holder is not None:
        since = datetime.fromtimestamp(holder.since).strftime("%Y-%m-%d %H:%M:%S")
        who = f"process {holder.pid} on {holder.host}, since {since}"
    return (
        f"run {root.name!r} is being written by {who}\n\n"
        "hint: wait for it or end that process, or give this run another RunConfig(name=...)"
    )
