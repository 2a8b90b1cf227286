"""Plants faults in the engine and the files that a run acts through, and in its backend.

The driver is lost depending on its journal, which is checked whenever the driver acts: every line is in the file before
the driver acts on it.
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
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from paceline._control.events import Event
from paceline._core.system import Clock
from paceline._engine.base import Engine
from paceline._storage.run_layout import RunLayout
from paceline.testing.engine import FakeEngine
from paceline.testing.faults.engine import FaultyEngine
from paceline.testing.faults.files import faulty_files, find_phase
from paceline.testing.faults.moments import StrikeLog
from paceline.testing.faults.values import DriverLost, Faults, LoseDriverFault, select_faults
from paceline.testing.faults.worker import FaultyBackend
from paceline.train.driver.run_spec import RunEnvironment

if TYPE_CHECKING:
    from paceline.train.trainer import DataParallelTrainer

    Trainer = TypeVar("Trainer", bound=DataParallelTrainer)

_EVENT_TYPE = re.compile(rb'"type":"(\w+)"')
_EVENT_NAMES = {event.__struct_config__.tag: event.__name__ for event in get_args(Event)}


def plant_faults(faults: Faults, trainer: Trainer) -> Trainer:
    """Return a copy of the trainer whose run meets the faults."""
    arguments, root = trainer.trainer_arguments, trainer.run_config.path
    trainer = copy.copy(trainer)
    trainer.trainer_arguments = arguments.replace(
        backend_config=FaultyBackend(arguments.backend_config, faults, os.getpid(), root),
        environment=build_faulty_environment(faults, arguments.environment, root),
    )
    return trainer


def build_faulty_environment(faults: Faults, environment: RunEnvironment, run_path: Path) -> RunEnvironment:
    """Return an environment through which a run in that directory meets the faults."""
    driver = _FaultyDriver(faults, faults.memory(run_path), run_path)
    sleep = getattr(environment.clock, "advance", time.sleep)
    return RunEnvironment(
        make_engine=environment.make_engine,
        wrap_engine=lambda inner: driver.wrap_engine(inner, environment.clock),
        files=faulty_files(environment.files, faults, driver.strike_log, run_path, driver.on_act, sleep),
        clock=environment.clock,
    )


class _FaultyDriver:
    """Tracks the phases of a run's driver, and where it is lost."""

    def __init__(self, faults: Faults, strike_log: StrikeLog, root: Path) -> None:
        self.strike_log = strike_log
        self._faults = faults
        self._root = root
        self.engine: FaultyEngine | None = None
        self._fake = False
        self._lost = False
        self._losses = select_faults(faults, LoseDriverFault)
        self._journal = _JournalCounter(RunLayout(root).journal)

    def wrap_engine(self, inner: Engine, clock: Clock) -> Engine:
        if self.engine is not None:
            return inner  # For work beside the training, while the first engine is still in use.
        self._fake = isinstance(inner, FakeEngine)
        self.engine = FaultyEngine(inner, self._faults, self.strike_log, clock, self._lose)
        return _LoseableEngine(self.engine, self)

    def on_act(self, act: str, path: Path) -> None:
        """Called before the driver acts on a path."""
        self.raise_if_lost()
        phase = find_phase(self._root, act, path)
        if phase is not None and self.engine is not None:
            self.engine.enter_phase(*phase)

    def raise_if_lost(self) -> None:
        """Lose the driver if the journal has reached the point where it is to be lost."""
        if self._lost:
            raise DriverLost
        if self._losses:
            counts = self._journal.read_counts()
            for index, loss in self._losses.items():
                reached = counts.total() if loss.event is None else counts[loss.event]
                if reached >= loss.number and self.strike_log.claim(index):
                    self._lose()

    def _lose(self) -> None:
        if not self._fake:
            os.kill(os.getpid(), signal.SIGKILL)
        self._lost = True
        raise DriverLost


class _JournalCounter:
    """Counts the event types in a journal as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # protects the two below: the driver acts in two threads
        self._counts: Counter[str] = Counter()
        self._num_bytes_read = 0

    def read_counts(self) -> Counter[str]:
        with self._lock:
            try:
                size = self._path.stat().st_size
            except FileNotFoundError:
                return Counter()
            if size < self._num_bytes_read:  # A torn tail was cut off.
                self._num_bytes_read = 0
                self._counts.clear()
            if size > self._num_bytes_read:
                with self._path.open("rb") as file:
                    file.seek(self._num_bytes_read)
                    lines = file.read().split(b"\n")[:-1]
                self._num_bytes_read += sum(len(line) + 1 for line in lines)
                kinds = (_EVENT_TYPE.search(line) for line in lines)
                tags = (kind[1].decode() if kind is not None else "" for kind in kinds)
                self._counts.update(_EVENT_NAMES.get(tag, "") for tag in tags)
            return Counter(self._counts)


class _LoseableEngine:
    """Checks at each call whether the driver is to be lost."""

    def __init__(self, inner: FaultyEngine, driver: _FaultyDriver) -> None:
        self._inner = inner
        self._driver = driver

    def close(self) -> None:
        self._driver.engine = None
        self._inner.close()

    def __getattr__(self, name: str) -> Any:
        if name != "wake":
            self._driver.raise_if_lost()
        return getattr(self._inner, name)
