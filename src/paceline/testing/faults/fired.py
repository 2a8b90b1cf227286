"""Which faults have struck, in a file that outlives the process that a fault ended.

One line for each, taken under a lock before the act: a restarted attempt and a new driver are spared.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Strike:
    """A fault that struck: its number in `Faults.all`, when, and in which process."""

    fault: int
    at: float
    pid: int


class Fired:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._spent: set[int] = set()

    def claim(self, fault: int, times: int = 1) -> bool:
        """Take one of the times that a fault may strike; False once there are none left."""
        if fault in self._spent:
            return False
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            taken = sum(strike.fault == fault for strike in _read(file.read()))
            if taken >= times:
                self._spent.add(fault)
                return False
            file.write(json.dumps({"fault": fault, "at": time.time(), "pid": os.getpid()}) + "\n")
        return True

    def free(self, fault: int) -> bool:
        """Whether a fault has not struck yet."""
        return all(strike.fault != fault for strike in self.strikes())

    def strikes(self) -> list[Strike]:
        try:
            return _read(self.path.read_text())
        except FileNotFoundError:
            return []


def _read(text: str) -> list[Strike]:
    return [Strike(**json.loads(line)) for line in text.splitlines()]
