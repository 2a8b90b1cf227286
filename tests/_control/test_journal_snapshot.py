"""A run from a snapshot and the rest of its journal is the run from all of the journal, wherever a driver was lost."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import settings

from paceline._control import events, journal_snapshot
from paceline._control.events import DriverStarted, Reported, decode_event, encode_event
from paceline._control.journal import encode_run_event
from paceline._control.journal_snapshot import EventHistory, JournalSnapshot, SnapshotFile, read_snapshot, take_snapshot
from paceline._control.recovery import load_outline, replay_journal
from paceline._control.run import Run, Running, Stopping
from paceline._control.step import step, step_reports
from paceline._core.codec import seal_line
from paceline._engine.messages import WorkerFailed, WorkerFailure, WorkerReady
from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import DiskRunStore
from paceline._view import pace
from paceline._view.journal.outline import make_outline
from paceline._view.run_reader import RunReader
from properties import test_step


@pytest.fixture(autouse=True)
def outlines_without_most_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "NUM_SAMPLES", 1)


def outcome(layout: RunLayout) -> tuple[Any, ...]:
    replay, history, reader = replay_journal(layout)
    commits = [command.record for command in replay.unanswered_commits()]
    known = replay.run, replay.num_events, replay.lease, replay._known_records, commits
    return (*known, history.events, history.last_rank_0_report, reader.length, reader.num_lines)


def write_snapshot(layout: RunLayout, snapshot: JournalSnapshot, length: int, num_lines: int) -> None:
    with layout.journal.open("rb") as journal:
        SnapshotFile(layout, 0, make_outline).write(snapshot, journal.fileno(), length, num_lines)


def check_cuts(layout: RunLayout, journal: bytes, length: int) -> None:
    """Compare with and without the snapshot, for a driver that was lost before, at and after its end."""
    snapshot = layout.snapshot.read_bytes()
    for cut in (random.randrange(length), length, random.randrange(length, len(journal) + 1), len(journal)):
        layout.journal.write_bytes(journal[:cut])
        assert (read_snapshot(layout) is not None) == (cut >= length)
        found = outcome(layout), summarize(layout)
        layout.snapshot.unlink()
        assert found == (outcome(layout), summarize(layout))
        layout.snapshot.write_bytes(snapshot)


def summarize(layout: RunLayout) -> Any:
    reader = RunReader(layout.root, only_summary=True)
    reader.refresh()
    return reader.summary() if reader.has_lines else None


class SnapshotMachine(test_step.RunMachine):
    """Every journal that the tests of `step` come to, with the times of its drivers."""

    def teardown(self) -> None:
        super().teardown()
        if not getattr(self, "intact", False):
            return
        run, history, data, taken = Run(), EventHistory(), b"", []
        for number, (line, heard_at) in enumerate(self.journal, start=1):
            event = decode_event(line)
            run = step(run, event, heard_at)[0]
            history.add(event)
            data += seal_line(encode_run_event(event))
            if (snapshot := take_snapshot(run, history)) is not None:
                taken.append((snapshot, len(data), number))
        self.check_batches()
        with tempfile.TemporaryDirectory() as directory:
            layout = RunLayout(Path(directory))
            for snapshot, length, num_lines in random.sample(taken, min(3, len(taken))):
                layout.journal.write_bytes(data)
                write_snapshot(layout, snapshot, length, num_lines)
                check_cuts(layout, data, length)

    def check_batches(self) -> None:
        """Many reports at once, some of them twice, come to the same run."""
        recorded = [decode_event(line) for line, _ in self.journal]
        batch = [
            event for event in recorded for _ in range(random.choice((1, 1, 2)) if isinstance(event, Reported) else 1)
        ]
        run, one_by_one, at, changed = Run(), Run(), 0, []
        while at < len(batch):
            begun = at
            run, reports, at = step_reports(run, batch, at)
            for event in batch[begun:at]:
                before, (one_by_one, commands) = one_by_one, step(one_by_one, event)
                changed += [event] if one_by_one is not before else []
                assert not commands
            assert (run, reports) == (one_by_one, changed)
            changed.clear()
            if at < len(batch):
                run = one_by_one = step(run, batch[at])[0]
                at += 1


TestSnapshots = SnapshotMachine.TestCase
TestSnapshots.settings = settings(
    test_step.TestStepDoesWhatTheModelSays.settings, max_examples=25, stateful_step_count=60
)


def report(seq: int, loss: float = 0.5) -> Reported:
    return Reported(1, 0, seq, msgspec.Raw(msgspec.json.encode({"loss": loss})), float(seq), "x.py:1")


STORY: list[events.Event] = [DriverStarted(1, 0, lease=1), WorkerReady(1, 0, 7), *map(report, range(1, 6))]


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """A run with a snapshot of its first five lines."""
    layout = RunLayout(tmp_path)
    lines = [seal_line(encode_event(event)) for event in STORY]
    layout.journal.write_bytes(b"".join(lines))
    run, history = Run(), EventHistory()
    for event in STORY[:5]:
        run = step(run, event, 9.0)[0]
        history.add(event)
    snapshot = take_snapshot(run, history)
    assert snapshot is not None
    write_snapshot(layout, snapshot, len(b"".join(lines[:5])), 5)
    return layout


def test_only_what_follows_a_snapshot_is_replayed(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed = []
    monkeypatch.setattr("paceline._control.recovery.step", lambda *given: replayed.append(given[1]) or step(*given))
    run, _, last = load_outline(DiskRunStore(LocalFiles(), layout))
    assert replayed[:2] == STORY[5:]
    assert run.num_reports == 5
    assert last is not None
    assert last.metrics == {"loss": 0.5}


def _tear(layout: RunLayout) -> None:
    layout.snapshot.write_bytes(layout.snapshot.read_bytes()[:-7])


def _age(layout: RunLayout) -> None:
    layout.snapshot.write_bytes(layout.snapshot.read_bytes().replace(b'"num_lines":5', b'"num_lines":6'))


def _cut_the_journal(layout: RunLayout) -> None:
    """A power cut lost lines; the next driver wrote others, which are longer."""
    lines = layout.journal.read_bytes().splitlines(keepends=True)
    others = [seal_line(encode_event(report(seq, 0.123456789))) for seq in range(2, 9)]
    layout.journal.write_bytes(b"".join([*lines[:3], *others]))


def _begin_another_run(layout: RunLayout) -> None:
    other = seal_line(encode_event(DriverStarted(1, 0, lease=2)))
    layout.journal.write_bytes(b"".join([other, *layout.journal.read_bytes().splitlines(keepends=True)[1:]]))


@pytest.mark.parametrize("change", [_tear, _age, _cut_the_journal, _begin_another_run])
def test_a_snapshot_that_does_not_fit_is_ignored(layout: RunLayout, change: Any) -> None:
    change(layout)
    assert read_snapshot(layout) is None
    found = outcome(layout)
    layout.snapshot.unlink()
    assert found == outcome(layout)


def test_a_snapshot_of_another_version_is_ignored(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_snapshot, "VERSION", "another")
    assert read_snapshot(layout) is None


def test_a_report_that_ends_a_failed_attempt_is_not_taken_with_others() -> None:
    run = Run()
    failure = WorkerFailure(0, "user", "ValueError: x")
    second = [Reported(1, 1, seq, msgspec.Raw(b"{}"), 0.0, "x.py:1") for seq in (1, 2)]
    for event in (DriverStarted(2, 0), report(1), report(2), second[0], WorkerFailed(1, 0, failure)):
        run = step(run, event)[0]
    assert isinstance(run.phase, Running)
    assert step_reports(run, second, 1) == (run, [], 1)
    assert isinstance(step(run, second[1])[0].phase, Stopping)
