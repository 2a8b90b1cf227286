"""A whole run on the fake engine: workers that report, stage, wait, join and stop as real ones do, in microseconds."""

import contextlib
from pathlib import Path
from unittest.mock import patch

import msgspec

from paceline._control.controller import Controller
from paceline._control.events import DriverStarted, Retention
from paceline._control.extensions import CapacityWatch
from paceline._control.recovery import load_history
from paceline._control.storage_thread import DeletionThread
from paceline._core.checkpoint_records import StagedFiles
from paceline._engine import messages
from paceline._engine.base import WorkerGroupSpec, WorkerResources, WorkerSpec
from paceline._storage.files import LocalFiles, hash_file
from paceline._storage.run_layout import RunLayout, checkpoint_name
from paceline._storage.run_location import RunLocation
from paceline._storage.run_store import DiskRunStore
from paceline.testing import DriverLost, FakeClock, FakeEngine
from paceline.testing.faults.plant import build_faulty_environment
from paceline.train.driver.run_directory import open_run
from paceline.train.driver.run_spec import RunEnvironment

STEPS = 7
LAST_CHECKPOINT = 6


class Stuck(BaseException):
    """A run on the fake engine in which nothing will ever happen again."""


class PatientClock(FakeClock):
    """Waits for a while of its own time and no longer."""

    limit = float("inf")

    def now(self):
        if super().now() > self.limit:
            raise Stuck
        return super().now()


class ImmediateDeletions(DeletionThread):
    """Deletes at once, so that a fault in a deletion strikes at the same event every time."""

    def submit(self, work):
        try:
            work()
        except BaseException as error:
            self._on_error(error)

    def set_saving(self, is_saving):
        pass


def worker(begin):
    """Joins, reports with a checkpoint in every second report, waits for its commit, stops at the given report."""
    layout = RunLayout(Path(begin.run_path))
    attempt, rank = begin.attempt, begin.rank
    state = {"held": False, "stop": None, "committed": set(), "released": set(), "exit": False}
    seq = begin.first_seq

    def take(message):
        match message:
            case messages.CheckpointCommitted(record=record):
                state["committed"].add(record.seq)
            case messages.CheckpointRefused(seq=refused):
                state["committed"].add(refused)
            case messages.Hold():
                state["held"] = True
                return messages.WorkerHeld(attempt, rank, seq)
            case messages.StopAt(seq=at):
                state["stop"] = at
            case messages.Release(number=number):
                state["released"].add(number)
            case messages.ExitWorker():
                state["exit"] = True
        return None

    def until(done):
        while not done():
            answer = take((yield None))
            if answer is not None:
                yield answer

    yield messages.WorkerReady(attempt, rank, pid=1)
    yield messages.Joined(attempt, rank, 1, "x.py:1")
    yield from until(lambda: 1 in state["released"])
    while seq < STEPS and state["stop"] != seq:
        yield from until(lambda: not state["held"] or state["stop"] is not None)
        seq += 1
        name = checkpoint_name(seq) if seq % 2 == 0 else None
        metrics = msgspec.json.encode({"seq": seq, "rank": rank})
        yield messages.Reported(attempt, rank, seq, msgspec.Raw(metrics), 0.0, "x.py:2", name)
        if name is not None:
            target = layout.staged_rank(attempt, seq, rank) / f"rank_{rank}"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(f"{seq} of {rank}")
            yield messages.CheckpointStaged(attempt, seq, StagedFiles(rank, (hash_file(target, target.name),)))
            yield from until(lambda seq=seq: seq in state["committed"])
        answer = take((yield None))
        if answer is not None:
            yield answer
    yield messages.WorkerReturned(attempt, rank, seq, stopped=state["stop"] is not None)
    while True:
        answer = take((yield None))
        if answer is not None:
            yield answer


def drive(path, faults, *, size=2, limit=float("inf"), before=None, stop_after=None, sizes=()):
    """Play a run to its end, with a new driver for each that was lost; returns the run and its engines."""
    engines = []
    stopper = _Stopper(stop_after)
    for _ in range(20):
        clock = PatientClock()
        clock.limit = limit
        engine = FakeEngine(worker, clock)
        engines.append(engine)
        environment = build_faulty_environment(
            faults, RunEnvironment(make_engine=lambda _, e=engine: e, files=LocalFiles(), clock=clock), path
        )
        # No power is cut here: what was written is there for the next driver.
        location = RunLocation.from_path(str(path))
        with (
            patch("os.fsync"),
            patch("paceline._control.controller.DeletionThread", ImmediateDeletions),
            contextlib.suppress(DriverLost),
            open_run(location, environment, say=lambda text: None) as (recovered, run_store),
        ):
            with contextlib.closing(environment.wrap_engine(environment.make_engine(None))) as faulty:
                controller = Controller(
                    recovered,
                    engine=faulty,
                    store=run_store,
                    group=lambda command, run: _group(path, command, run),
                    clock=environment.clock,
                    observers=[stopper],
                    extensions=[CapacityWatch(WorkerResources())],
                )
                if before is not None:
                    before(controller)
                stopper.controller = controller
                started = DriverStarted(size, 20, Retention(num_to_keep=1), sizes=sizes)
                return controller.drive(started), engines
    raise AssertionError("20 drivers were lost")


class _Stopper:
    """Asks for a stop once so many events were seen."""

    def __init__(self, after):
        self.left = after

    def on_event(self, event, run):
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.controller.request_stop(now=False)

    def tick(self, run, now):
        pass


def rows(path, rank):
    """The reports of a rank that count."""
    counting, attempt = [], 0
    for event in load_history(DiskRunStore(LocalFiles(), RunLayout(path)))[1]:
        if isinstance(event, messages.Reported) and event.rank == rank:
            if event.attempt > attempt:
                attempt = event.attempt
                counting = [row for row in counting if row["seq"] < event.seq]
            counting.append(msgspec.json.decode(event.metrics))
    return counting


def expected(rank, steps=STEPS):
    return [{"seq": seq, "rank": rank} for seq in range(1, steps + 1)]


def _group(path, command, run):
    resume, size = command.resume, command.size
    first = resume.seq if resume else 0
    begins = [
        messages.WorkerInit("run", str(path), command.attempt, rank, size, rank, size, 0, first, 1, resume=resume)
        for rank in range(size)
    ]
    return WorkerGroupSpec(command.attempt, tuple(WorkerSpec(begin, path / "log") for begin in begins), b"")
