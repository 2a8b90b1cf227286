"""Checkpoints that others begin from: kept though retention would not, through any end of the driver, and no longer."""

import threading
from pathlib import Path

import pytest
from msgspec import Raw

from paceline import train
from paceline._control import journal
from paceline._control.commands import AnnounceCommit, AnnounceRemoval, Command, DeleteCheckpoint
from paceline._control.controller import Controller
from paceline._control.events import (
    CheckpointBroken,
    CheckpointsFound,
    CheckpointStaged,
    Committed,
    DriverStarted,
    Event,
    PinsSet,
    Reported,
    Retention,
)
from paceline._control.recover import recovered
from paceline._control.run import Run
from paceline._control.step import step
from paceline._engine.messages import CheckpointRecord, FileEntry, Staged
from paceline._storage import commit
from paceline._storage.depot import DiskDepot
from paceline._storage.files import LocalFiles
from paceline._storage.layout import Layout
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, RunConfig
from paceline.train.drive import Seams, SignalInterrupts

LAST_ONE = DriverStarted(1, 0, Retention(num_to_keep=1))


def record(seq: int, attempt: int = 1) -> CheckpointRecord:
    return CheckpointRecord(seq, f"checkpoint_{seq:06d}", attempt, Raw(b"{}"), 5)


def saved(run: Run, seq: int) -> tuple[Run, list[Command]]:
    run, _ = step(run, Reported(run.attempt, 0, seq, Raw(b"{}"), 0.0, "train.py:1", f"checkpoint_{seq:06d}"))
    run, _ = step(run, CheckpointStaged(run.attempt, seq, Staged(0, (FileEntry("a.bin", 5, "ff"),))))
    return step(run, Committed(record(seq, run.attempt)))


def played(*story: Event | int, run: Run | None = None) -> Run:
    """Numbers are checkpoints that are reported, staged and committed."""
    run = run if run is not None else Run()
    for event in story:
        run, _ = saved(run, event) if isinstance(event, int) else step(run, event)
    return run


def seqs(run: Run) -> list[int]:
    return [kept.seq for kept in run.checkpoints]


def test_one_that_is_pinned_stays_until_it_is_not_and_then_goes_at_once() -> None:
    run = played(LAST_ONE, 1, PinsSet(1, (1,)))
    run, commands = saved(run, 2)
    assert commands == [AnnounceCommit(1, record(2))]
    run, commands = saved(run, 3)
    assert commands == [AnnounceCommit(1, record(3), (2,)), DeleteCheckpoint(record(2))]
    assert (seqs(run), run.pinned) == ([1, 3], (1,))
    run, commands = step(run, PinsSet(1, ()))
    assert commands == [AnnounceRemoval(1, (1,)), DeleteCheckpoint(record(1))]
    assert (seqs(run), run.pinned) == ([3], ())


def test_what_is_asked_for_replaces_what_was_pinned_before() -> None:
    run = played(LAST_ONE, 1, PinsSet(1, (1,)), 2, PinsSet(1, (1, 2)), 3)
    assert (seqs(run), run.pinned) == ([1, 2, 3], (1, 2))
    run, commands = step(run, PinsSet(1, (2,)))
    assert commands == [AnnounceRemoval(1, (1,)), DeleteCheckpoint(record(1))]
    assert (seqs(run), run.pinned) == ([2, 3], (2,))


def test_a_pin_that_comes_too_late_is_told_as_none() -> None:
    run = played(LAST_ONE, 1, 2)
    after, commands = step(run, PinsSet(1, (1, 2, 7)))
    assert after.pinned == (2,)
    assert commands == []
    again, _ = step(after, PinsSet(1, (2,)))
    assert again == after
    assert again is not after, "what changes nothing is not told, and somebody waits for it"


def test_a_pin_is_counted_beside_those_that_retention_keeps() -> None:
    run = played(DriverStarted(1, 0, Retention(num_to_keep=2)), 1, PinsSet(1, (1,)), 2, 3, 4)
    assert seqs(run) == [1, 3, 4]


def test_while_the_newest_may_turn_out_to_be_broken_nothing_that_is_unpinned_goes() -> None:
    run = played(LAST_ONE, 1, PinsSet(1, (1,)), 2)
    run = played(DriverStarted(1, 0, Retention(num_to_keep=1), pinned=(1,)), run=run)
    run, commands = step(run, PinsSet(2, ()))
    assert commands == []
    run = played(CheckpointBroken(2, 2, "a.bin is missing"), run=run)
    assert seqs(run) == [1]


def test_the_pin_of_one_that_is_gone_does_not_pass_to_another_with_its_number() -> None:
    run = played(LAST_ONE, 1, PinsSet(1, (1,)), 2, PinsSet(1, (1, 2)))
    run = played(DriverStarted(1, 0, Retention(num_to_keep=1), pinned=(1, 2)), run=run)
    assert run.pinned == (1, 2)
    run = played(CheckpointBroken(2, 2, "gone"), run=run)
    assert run.pinned == (1,)
    run = played(CheckpointsFound(missing=(1,)), run=run)
    assert run.pinned == ()


def test_the_next_driver_says_itself_what_is_pinned() -> None:
    run = played(LAST_ONE, 1, PinsSet(1, (1,)), 2)
    assert played(DriverStarted(1, 0, pinned=(2, 9)), run=run).pinned == (2,)
    assert played(DriverStarted(1, 0), run=run).pinned == ()


# With the files of real runs


class Pinning(SignalInterrupts):
    """Asks from a thread of its own for what a report's number is found under, and keeps what was told."""

    def __init__(self, wanted: dict[int, tuple[int, ...]]) -> None:
        self.wanted = wanted
        self.told: list[tuple[tuple[int, ...], tuple[int, ...], list[int]]] = []

    def of(self, controller: Controller) -> "Pinning":
        super().__init__(controller)
        self._asked = controller
        return self

    def saw(self, event: Event, run: Run) -> None:
        if isinstance(event, Committed) and event.record.seq in self.wanted:
            pins = self.wanted[event.record.seq]
            asking = threading.Thread(target=self._asked.request_pins, args=(pins,))
            asking.start()
            asking.join()
        elif isinstance(event, PinsSet):
            self.told.append((event.seqs, run.pinned, seqs(run)))

    def tick(self, run: Run, now: float) -> None: ...


def save(steps: int, failing: bool = False) -> None:
    last = train.get_checkpoint()
    for i in range(last.to_dict()["i"] + 1 if last is not None else 1, steps + 1):
        train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))
    if failing:
        raise ValueError("planned")


def fitted(path: Path, pinning: Pinning, steps: int, *, failing: bool = False) -> None:
    run_config = RunConfig(name="donor", storage_path=path, checkpoint_config=CheckpointConfig(num_to_keep=1))
    trainer = DataParallelTrainer(lambda: save(steps, failing), run_config=run_config)
    trainer._seams = Seams(interrupts=pinning.of, watchers=(lambda stop: pinning,))
    trainer.fit()


def on_disk(path: Path) -> set[str]:
    return {manifest.record.name for manifest in commit.manifests(Layout(path / "donor"))}


def test_other_threads_pin_and_are_told_what_is_there(tmp_path: Path) -> None:
    pinning = Pinning({2: (2,), 5: (1, 2), 7: (7,)})
    fitted(tmp_path, pinning, 8)
    # Retention took the first before it was asked for, and the second as soon as it was not asked for any more.
    asked, there = [t[0] for t in pinning.told], [t[1] for t in pinning.told]
    assert asked == [(2,), (1, 2), (7,)]
    assert there == [(2,), (2,), (7,)]
    assert 2 not in pinning.told[-1][2]
    assert on_disk(tmp_path) == {"checkpoint_000007", "checkpoint_000008"}
    told = [event for event in journal.read(tmp_path / "donor/journal.jsonl") if isinstance(event, PinsSet)]
    assert [event.seqs for event in told] == asked


def test_a_pinned_checkpoint_outlasts_its_driver_and_recovery(tmp_path: Path) -> None:
    with pytest.raises(train.TrainingFailedError):
        fitted(tmp_path, Pinning({2: (2,)}), 4, failing=True)
    assert on_disk(tmp_path) == {"checkpoint_000002", "checkpoint_000004"}
    found = recovered(DiskDepot(LocalFiles(), Layout(tmp_path / "donor")), 0.0)
    found.journal.close()
    assert found.run.pinned == (2,)
    assert on_disk(tmp_path) == {"checkpoint_000002", "checkpoint_000004"}
