"""A controller on the fake engine and the fake clock, driven to the end of its run."""

from paceline._control import journal
from paceline._control.controller import Controller
from paceline._control.events import DriverStarted
from paceline._control.journal import Journal
from paceline._control.recovery import RecoveredRun
from paceline._control.run import Run
from paceline._engine.base import WorkerGroupSpec, WorkerSpec
from paceline._engine.messages import WorkerInit
from paceline._storage.files import LocalFiles
from paceline._storage.lease import UNFENCED
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import DiskRunStore
from paceline.testing import FakeClock, FakeEngine


def drive(tmp_path, worker, *, size=2, max_failures=0, before=None, conditions=(), fence=UNFENCED, **options):
    """Return the run, the events of its journal, and the engine; `options` are the controller's."""
    layout = RunLayout(tmp_path)
    clock = FakeClock()
    engine = FakeEngine(worker, clock)
    engine.conditions.update(conditions)

    def group(command, run):
        inits = [
            WorkerInit("run", str(tmp_path), command.attempt, rank, size, rank, size, 0, run.num_reports, 1)
            for rank in range(size)
        ]
        return WorkerGroupSpec(command.attempt, tuple(WorkerSpec(init, tmp_path / "log") for init in inits), b"")

    journal_file = Journal(layout.journal)
    store = DiskRunStore(LocalFiles(), layout)
    recovered = RecoveredRun(Run(), journal_file, (), fence)
    controller = Controller(recovered, engine=engine, store=store, group=group, clock=clock, **options)
    if before is not None:
        before(controller)
    run = controller.drive(DriverStarted(size, max_failures))
    journal_file.close()
    return run, journal.read_events(layout.journal), engine


class RecordingObserver:
    """An observer that records the events."""

    def __init__(self):
        self.events = []

    def on_event(self, event, run):
        self.events.append(event)

    def tick(self, run, now):
        pass
