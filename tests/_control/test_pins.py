"""Checkpoints that others begin from are kept, though retention would not, through any end of the driver."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline import train
from paceline._control.controller import Controller
from paceline._control.events import Committed, Event, PinsSet
from paceline._control.recovery import recover_run
from paceline._control.run import Run
from paceline._storage import commit
from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import DiskRunStore
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, RunConfig
from paceline.train.driver.interrupts import SignalInterrupts
from paceline.train.driver.run_spec import RunHooks
from paceline.train.driver.trainer_arguments import run_trainer
from written_runs import read_events


class Pinning(SignalInterrupts):
    """Asks from another thread for the pins that are wanted once a checkpoint is committed, and keeps the answers."""

    def __init__(self, pins: dict[int, tuple[int, ...]]) -> None:
        self.pins = pins
        self.answers: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def of(self, controller: Controller) -> "Pinning":
        super().__init__(controller)
        self.request_pins = controller.request_pins
        return self

    def on_event(self, event: Event, run: Run) -> None:
        if isinstance(event, Committed) and event.record.seq in self.pins:
            with ThreadPoolExecutor(1) as other:
                other.submit(self.request_pins, self.pins[event.record.seq])
        elif isinstance(event, PinsSet):
            self.answers.append((event.seqs, run.pinned))

    def tick(self, run: Run, now: float) -> None: ...


def save_eight_and_fail() -> None:
    for i in range(1, 9):
        train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))
    raise ValueError("planned")


def on_disk(path: Path) -> set[str]:
    return {manifest.record.name for manifest in commit.iter_manifests(RunLayout(path / "donor"))}


def test_other_threads_pin_and_what_is_pinned_outlasts_the_driver_and_recovery(tmp_path: Path) -> None:
    pinning = Pinning({2: (2,), 5: (1, 2), 7: (7,)})
    run_config = RunConfig(name="donor", storage_path=tmp_path, checkpoint_config=CheckpointConfig(num_to_keep=1))
    trainer = DataParallelTrainer(save_eight_and_fail, run_config=run_config)
    hooks = RunHooks(make_interrupts=pinning.of, observer_factories=(lambda stop: pinning,))
    with pytest.raises(train.TrainingFailedError):
        run_trainer(trainer.trainer_arguments, hooks)
    # Retention took the first before it was asked for, and the second as soon as it was not asked for any more.
    assert pinning.answers == [((2,), (2,)), ((1, 2), (2,)), ((7,), (7,))]
    assert [event.seqs for event in read_events(tmp_path / "donor", PinsSet)] == [seqs for seqs, _ in pinning.answers]
    assert on_disk(tmp_path) == {"checkpoint_000007", "checkpoint_000008"}
    recovered = recover_run(DiskRunStore(LocalFiles(), RunLayout(tmp_path / "donor")), 0.0)
    recovered.journal.close()
    assert recovered.run.pinned == (7,)
    assert on_disk(tmp_path) == {"checkpoint_000007", "checkpoint_000008"}
