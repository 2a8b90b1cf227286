"""Where faults are planted: in the engine and the files that a run acts through, and in its backend.

The driver is lost by what its journal holds, looked at whenever the driver acts: every line is in the file before
what follows from it is done.
"""

from __future__ import annotations

import copy
import os
import re
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from paceline._core.clock import Clock
from paceline._engine.base import Engine
from paceline._storage.layout import Layout
from paceline.testing.engine import FakeEngine
from paceline.testing.faults.engine import FaultyEngine
from paceline.testing.faults.files import faulty_files, phase_of
from paceline.testing.faults.fired import Fired
from paceline.testing.faults.values import DriverLost, Faults, LoseDriver
from paceline.testing.faults.worker import FaultyBackend
from paceline.train.drive import Seams

if TYPE_CHECKING:
    from paceline.train.trainer import DataParallelTrainer

    Trainer = TypeVar("Trainer", bound=DataParallelTrainer)

_KIND = re.compile(rb'"type":"(\w+)"')


def planted(faults: Faults, trainer: Trainer) -> Trainer:
    """A copy of the trainer whose run meets the faults."""
    twin = copy.copy(trainer)
    root = Path(trainer.run_config.path)
    twin.backend_config = FaultyBackend(trainer.backend_config, faults, os.getpid(), root)
    twin._seams = faulty_seams(faults, trainer._seams, root)
    return twin


def faulty_seams(faults: Faults, seams: Seams, run_path: Path) -> Seams:
    """Seams that a run in that directory meets the faults through."""
    driver = _Driver(faults, faults.memory(run_path), run_path)
    sleep = getattr(seams.clock, "advance", time.sleep)
    return Seams(
        engine=seams.engine,
        around=lambda inner: driver.engine_around(inner, seams.clock),
        files=faulty_files(seams.files, faults, driver.fired, run_path, driver.acted, sleep),
        clock=seams.clock,
    )


class _Driver:
    """What the driver of a run comes to, and where it is lost."""

    def __init__(self, faults: Faults, fired: Fired, root: Path) -> None:
        self.fired = fired
        self._faults = faults
        self._root = root
        self._engine: FaultyEngine | None = None
        self._fake = False
        self._lost = False
        self._losses = {i: f for i, f in enumerate(faults.all) if isinstance(f, LoseDriver)}
        self._journal = _Growth(Layout(root).journal)

    def engine_around(self, inner: Engine, clock: Clock) -> Engine:
        if self._engine is not None:
            return inner  # For work beside the training, while that one is still in use.
        self._fake = isinstance(inner, FakeEngine)
        self._engine = FaultyEngine(inner, self._faults, self.fired, clock, self._lose)
        return _LoseableEngine(self._engine, self)

    def engine_closed(self) -> None:
        self._engine = None

    def acted(self, act: str, path: Path) -> None:
        """The driver is about to do something to a path."""
        self.look()
        phase = phase_of(self._root, act, path)
        if phase is not None and self._engine is not None:
            self._engine.passed(*phase)

    def look(self) -> None:
        """Be lost, if the journal has come to where the driver is to be."""
        if self._lost:
            raise DriverLost
        if self._losses:
            counts = self._journal.counts()
            for index, loss in self._losses.items():
                reached = counts.total() if loss.event is None else counts[loss.event]
                if reached >= loss.number and self.fired.claim(index):
                    self._lose()

    def _lose(self) -> None:
        if not self._fake:
            os.kill(os.getpid(), signal.SIGKILL)
        self._lost = True
        raise DriverLost


class _Growth:
    """The kinds of the events in a journal, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # protects what follows: the driver acts in two threads
        self._counts: Counter[str] = Counter()
        self._read = 0

    def counts(self) -> Counter[str]:
        with self._lock:
            try:
                size = self._path.stat().st_size
            except FileNotFoundError:
                return Counter()
            if size < self._read:  # A torn tail was cut off.
                self._read = 0
                self._counts.clear()
            if size > self._read:
                with self._path.open("rb") as file:
                    file.seek(self._read)
                    lines = file.read().split(b"\n")[:-1]
                self._read += sum(len(line) + 1 for line in lines)
                kinds = (_KIND.search(line) for line in lines)
                self._counts.update(kind[1].decode() if kind is not None else "" for kind in kinds)
            return Counter(self._counts)


class _LoseableEngine:
    """Looks, at each call, whether the driver is still to live."""

    def __init__(self, inner: FaultyEngine, driver: _Driver) -> None:
        self._inner = inner
        self._driver = driver

    def close(self) -> None:
        self._driver.engine_closed()
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        if name != "wake":
            self._driver.look()
        return getattr(self._inner, name)
