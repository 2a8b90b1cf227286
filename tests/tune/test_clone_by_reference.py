"""A run that begins from a committed checkpoint of another run: from the very files, wherever they are kept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import train
from paceline._control.controller import Controller
from paceline._control.events import Committed, Event, PinsSet
from paceline._control.run import Run
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, Result, RunConfig
from paceline.train.drive import Seams, SignalInterrupts


def save_four() -> None:
    for i in range(1, 5):
        train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))


def look_and_save() -> None:
    """What it was given, then as often as it has anything of its own: never the donor's again."""
    given = train.get_checkpoint()
    assert given is not None
    about = {"path": given.path, "i": given.to_dict()["i"]}
    train.report(about)
    train.report(about, checkpoint=Checkpoint.from_dict({"i": about["i"] + 1}))
    own = train.get_checkpoint()
    assert own is not None
    train.report({**about, "own": own.path})


def fitted(function: Callable[[], None], name: str, path: Any, seams: Seams | None = None, **about: Any) -> Result:
    initial = about.pop("initial", None)
    run_config = RunConfig(name=name, storage_path=path, **about)
    trainer = DataParallelTrainer(function, run_config=run_config, resume_from_checkpoint=initial)
    if seams is not None:
        trainer._seams = seams
    return trainer.fit()


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_on_a_disk_the_clone_reads_the_donors_own_directory_and_nothing_is_copied(tmp_path: Path) -> None:
    donor = fitted(save_four, "trial_00000", tmp_path)
    assert donor.checkpoint is not None
    before = contents(tmp_path / "trial_00000")
    clone = fitted(look_and_save, "trial_00001-1", tmp_path, initial=donor.checkpoint)
    assert clone.metrics is not None
    assert clone.metrics["path"] == donor.checkpoint.path == str(tmp_path / "trial_00000/checkpoint_000004")
    assert clone.metrics["own"] == str(tmp_path / "trial_00001-1/checkpoint_000002")
    kept = [path.name for path in (tmp_path / "trial_00001-1").glob("checkpoint_*")]
    assert kept == ["checkpoint_000002"]
    assert contents(tmp_path / "trial_00000") == before


def test_in_a_store_the_clone_reads_the_donors_own_objects_and_nothing_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.dirfs import DirFileSystem
    from fsspec.implementations.local import LocalFileSystem

    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "spool"))
    kept = {"storage_filesystem": DirFileSystem(str(tmp_path / "store"), LocalFileSystem())}
    donor = fitted(save_four, "trial_00000", "search", **kept)
    assert donor.checkpoint is not None
    before = contents(tmp_path / "store/search/trial_00000")
    clone = fitted(look_and_save, "trial_00001-1", "search", initial=donor.checkpoint, **kept)
    assert clone.metrics is not None
    assert clone.metrics["path"] == donor.checkpoint.path == "search/trial_00000/attempt_1/checkpoint_000004"
    assert clone.metrics["i"] == 4
    manifests = list((tmp_path / "store/search/trial_00001-1").rglob(".manifest.json"))
    assert [path.parent.name for path in manifests] == ["checkpoint_000002"]
    assert contents(tmp_path / "store/search/trial_00000") == before


class PinsTheSecond(SignalInterrupts):
    def __init__(self) -> None:
        self.pinned: tuple[int, ...] = ()

    def of(self, controller: Controller) -> "PinsTheSecond":
        super().__init__(controller)
        self._asked = controller
        return self

    def saw(self, event: Event, run: Run) -> None:
        if isinstance(event, Committed) and event.record.seq == 2:
            self._asked.request_pins((2,))
        elif isinstance(event, PinsSet):
            self.pinned = run.pinned

    def tick(self, run: Run, now: float) -> None: ...


def test_a_pinned_checkpoint_is_there_for_the_clone_though_its_donor_keeps_only_the_last(tmp_path: Path) -> None:
    pins = PinsTheSecond()
    seams = Seams(interrupts=pins.of, watchers=(lambda stop: pins,))
    fitted(save_four, "trial_00000", tmp_path, seams, checkpoint_config=CheckpointConfig(num_to_keep=1))
    assert pins.pinned == (2,)
    names = sorted(path.name for path in (tmp_path / "trial_00000").glob("checkpoint_*"))
    assert names == ["checkpoint_000002", "checkpoint_000004"]
    given = Checkpoint.from_directory(tmp_path / "trial_00000/checkpoint_000002")
    given.verify()
    clone = fitted(look_and_save, "trial_00001-1", tmp_path, initial=given)
    assert clone.metrics is not None
    assert clone.metrics["i"] == 2
