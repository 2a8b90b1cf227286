"""What a driver leaves of a long run, and whether the run reads the same with and without it."""

import pytest

from _control.test_journal_snapshot import outcome
from paceline import train
from paceline._control import journal_snapshot
from paceline._control.journal_snapshot import read_snapshot
from paceline._storage.run_layout import RunLayout
from paceline._view.listing import Listing
from paceline._view.run_reader import RunReader
from paceline.train import Checkpoint, Result
from paceline.train.driver import run_session


def train_func():
    last = train.get_checkpoint()
    first = last.to_dict()["step"] + 1 if last else 1
    for step in range(first, 41):
        state = Checkpoint.from_dict({"step": step}) if step % 10 == 0 else None
        train.report({"step": step, "loss": train.mean(1 / step)}, checkpoint=state)
        if step == 25 and last is None:
            raise ValueError("half way")


def check_reads_the_same(layout):
    assert read_snapshot(layout) is not None
    found = outcome(layout)
    snapshot = layout.snapshot.read_bytes()
    layout.snapshot.unlink()
    assert found == outcome(layout)
    layout.snapshot.write_bytes(snapshot)


def test_a_long_run_is_compressed_when_it_ends_and_reads_the_same(tmp_path, fit, monkeypatch):
    monkeypatch.setattr(run_session, "SHORTENED_BYTES", 0)
    monkeypatch.setattr(run_session, "ARCHIVED_BYTES", 0)
    layout = RunLayout(tmp_path / "run")
    for num_archives in (1, 2):
        if num_archives == 1:
            with pytest.raises(train.TrainingFailedError, match="half way"):
                fit(train_func)
        else:
            result = fit(train_func)
        assert len(list(layout.root.glob("journal-*.jsonl.gz"))) == num_archives
        assert layout.journal.read_bytes().count(b"\n") == num_archives
        assert not (layout.root / "reports").exists()
        check_reads_the_same(layout)
    assert result.metrics == Result.from_path(layout.root).metrics == {"step": 40, "loss": 1 / 40}
    assert result.metrics_dataframe["step"].tolist() == list(range(1, 41))
    assert fit(train_func).metrics == result.metrics, "it has finished"

    def refuse(*given):
        raise AssertionError("the journal is read")

    reader = RunReader(layout.root)
    reader.refresh()
    with monkeypatch.context() as patch:
        patch.setattr(RunReader, "refresh", refuse)
        listing = Listing(tmp_path, refuse)
        assert listing.refresh() == {"run"}
        assert listing.refresh() == set()
    assert listing.summaries() == [reader.summary("run")]


def test_snapshots_are_taken_while_a_run_goes_on(tmp_path, fit, monkeypatch):
    monkeypatch.setattr(journal_snapshot, "MIN_GROWTH_BYTES", 1)
    monkeypatch.setattr(journal_snapshot, "_GROWTH_FACTOR", 0)
    with pytest.raises(train.TrainingFailedError, match="half way"):
        fit(train_func)
    check_reads_the_same(RunLayout(tmp_path / "run"))
    assert fit(train_func).metrics == {"step": 40, "loss": 1 / 40}
    check_reads_the_same(RunLayout(tmp_path / "run"))
