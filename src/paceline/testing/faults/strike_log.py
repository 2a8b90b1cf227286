"""Which faults have struck, in a file that outlives a killed process.

Each strike is one line, written under a lock before the fault acts, so that it does not strike a restarted attempt or a
new driver again.
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
    """A fault that struck: its index in `Faults.all`, when, and in which process."""

    fault: int
    at: float
    pid: int


class StrikeLog:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._exhausted: set[int] = set()

    def claim(self, fault: int, times: int = 1) -> bool:
        """Claim one of the times that a fault may strike; return False once none are left."""
        if fault in self._exhausted:
            return False
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            taken = sum(strike.fault == fault for strike in _parse_strikes(file.read()))
            if taken >= times:
                self._exhausted.add(fault)
                return False
            file.write(json.dumps({"fault": fault, "at": time.time(), "pid": os.getpid()}) + "\n")
        return True

    def is_unused(self, fault: int) -> bool:
        """Whether a fault has not struck yet."""
        return all(strike.fault != fault for strike in self.strikes())

    def strikes(self) -> list[Strike]:
        try:
            return _parse_strikes(self.path.read_text())
        except FileNotFoundError:
            return []


def _parse_strikes(text: str) -> list[Strike]:
    return [Strike(**json.loads(line)) for line in text.splitlines()]
