"""A list shows the same of a run whether it reads the whole journal, or the outline of its beginning and the rest."""

from __future__ import annotations

import random
import types
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_view_run_reader import hold

from paceline._control import commands, events
from paceline._control.events import Event
from paceline._control.journal import Journal
from paceline._control.journal_snapshot import EventHistory, SnapshotFile, take_snapshot
from paceline._control.run import Run, Running
from paceline._control.step import step
from paceline._core.checkpoint_records import StagedFiles
from paceline._core.reductions import ReductionMark
from paceline._engine.messages import CheckpointStaged, Reported, WorkerFailed, WorkerFailure, WorkerReady
from paceline._storage.run_layout import RunLayout, checkpoint_name
from paceline._view import pace
from paceline._view.journal import outline
from paceline._view.journal.outline import make_outline
from paceline._view.listing import Listing
from paceline._view.model import Summary
from paceline._view.run_reader import RunReader
from written_runs import WrittenRun


class WrittenStory:
    """A run of random events, and what its driver writes."""

    def __init__(self, root: Path, seed: int) -> None:
        self.layout = RunLayout(root)
        root.mkdir()
        self.random = random.Random(seed)
        self.journal = Journal(self.layout.journal)
        self.run, self.history = Run(), EventHistory()
        self._size = self.random.choice((1, 2))
        self._reduces = self.random.random() < 0.5
        self._metric = self.random.choice(("loss", "acc"))
        self.at = 1000.0

    def play(self) -> Iterator[None]:
        about = msgspec.Raw(b'{"config": {"epochs": 30}}')
        for _ in range(self.random.randint(1, 3)):
            self.at += 1
            self._take(events.DriverStarted(self._size, 9, at=self.at))
            self._take(events.RunDescribed(about))
            assert isinstance(self.run.phase, Running)
            for rank in range(self._size):
                self._take(WorkerReady(self.run.attempt, rank, 7))
            yield from self._attempt(self.random.randint(0, 60))
            if self.random.random() < 0.5:
                failure = WorkerFailure(0, "user", f"ValueError: {self.run.attempt}")
                self._take(WorkerFailed(self.run.attempt, 0, failure))
                yield

    def _attempt(self, num_reports: int) -> Iterator[None]:
        attempt, first = self.run.attempt, self.run.num_reports + 1
        reached = [first - 1] * self._size
        while min(reached) < first + num_reports - 1:
            rank = self.random.choice([rank for rank in range(self._size) if reached[rank] <= min(reached) + 2])
            reached[rank] += 1
            seq = reached[rank]
            loss = self.random.choice((1 / seq, self.random.random(), float(seq), 0.5))
            metrics: dict[str, Any] = {self._metric: loss, "epoch": seq // 3, "note": f"{attempt} {seq}"}
            if self.random.random() < 0.1:
                del metrics[self.random.choice((self._metric, "note"))]
            name = checkpoint_name(seq) if seq % 7 == 0 and rank == 0 else None
            reduce = (ReductionMark((self._metric,), "mean"),) if self._reduces and self._metric in metrics else ()
            raw = msgspec.Raw(msgspec.json.encode(metrics))
            self.at += self.random.choice((0.1, 0.1, 0.1, 20.0))
            self._take(Reported(attempt, rank, seq, raw, self.at, "x.py:1", name, reduce=reduce))
            if name is not None:
                self._take(CheckpointStaged(attempt, seq, StagedFiles(0, ())))
            yield

    def _take(self, first: Event) -> None:
        waiting = deque([first])
        while waiting:
            event = waiting.popleft()
            self.run, asked = step(self.run, event)
            self.journal.append(event)
            self.history.add(event)
            for command in asked:
                if isinstance(command, commands.CommitCheckpoint):
                    waiting.append(events.Committed(command.record))
                elif isinstance(command, commands.VerifyCheckpoint):
                    attempt, seq = command.attempt, command.record.seq
                    is_broken = self.random.random() < 0.3
                    broken = events.CheckpointBroken(attempt, seq, "torn")
                    waiting.append(broken if is_broken else events.CheckpointVerified(attempt, seq))
        self.journal.flush()

    def write_snapshot(self) -> bool:
        snapshot = take_snapshot(self.run, self.history)
        if snapshot is not None:
            written = self.journal
            file = SnapshotFile(self.layout, 0, make_outline)
            file.write(snapshot, written.fileno(), written.length, written.num_lines)
        return snapshot is not None


def summarize(layout: RunLayout, *, only_summary: bool) -> tuple[Summary, bool]:
    reader = RunReader(layout.root, only_summary=only_summary)
    reader.refresh()
    return reader.summary(), reader.is_whole


def test_a_run_is_listed_the_same_with_and_without_an_outline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken at random times, each from the one before; and as of random later times, also by one who follows."""
    monkeypatch.setattr(pace, "NUM_SAMPLES", 1)
    monkeypatch.setattr(outline, "_MAX_CUTS", 1)
    num_outlined = num_with_best = num_read_whole = 0
    for seed in range(30):
        story = WrittenStory(tmp_path / str(seed), seed)
        following = None
        for _ in story.play():
            if story.random.random() < 0.15:
                story.write_snapshot()
            if story.random.random() < 0.3:
                found, is_whole = summarize(story.layout, only_summary=True)
                expected, _ = summarize(story.layout, only_summary=False)
                assert found == expected, seed
                if following is None and not is_whole:
                    following = RunReader(story.layout.root, only_summary=True)
                elif following is not None:
                    following.refresh()
                    assert following.summary() == RunReader(story.layout.root).summary(), seed
                    num_read_whole += following.is_whole
                num_outlined += not is_whole
                num_with_best += found.best is not None and not is_whole
        story.journal.close()
    assert num_outlined > 50
    assert num_with_best > 50
    assert num_read_whole > 2, "some follow a run that went back further than an outline allows"


def test_the_pace_of_a_run_that_goes_on_is_about_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "NUM_SAMPLES", 1)
    for seed in range(10):
        story = WrittenStory(tmp_path / str(seed), seed)
        for _ in story.play():
            if story.random.random() < 0.15:
                story.write_snapshot()
        hold(WrittenRun(story.layout.root))
        now = story.at + 1
        monkeypatch.setattr("paceline._view.run_reader.time", types.SimpleNamespace(time=lambda now=now: now))
        found, _ = summarize(story.layout, only_summary=True)
        expected, _ = summarize(story.layout, only_summary=False)
        assert (found.state, found.progress) == (expected.state, expected.progress)
        for name in ("left_s", "epochs_per_s", "steps_per_s"):
            shown, whole = getattr(found, name), getattr(expected, name)
            assert shown == (whole and pytest.approx(whole, rel=0.3)), (seed, name)
        story.journal.close()


def test_only_the_list_uses_an_outline(tmp_path: Path) -> None:
    story = WrittenStory(tmp_path / "run", 4)
    assert sum(1 for _ in story.play()) > 50
    hold(WrittenRun(story.layout.root))
    story.journal.close()
    story = WrittenStory(tmp_path / "other", 4)
    for number, _ in enumerate(story.play()):
        if number == 30:
            assert story.write_snapshot()
    story.journal.close()
    hold(WrittenRun(story.layout.root))
    listing = Listing(tmp_path, pytest.fail)
    listing.refresh()
    run, other = (listing.reader(name) for name in ("run", "other"))
    assert [*run.rows()] == [*other.rows()]
    assert run.is_whole
    assert other.is_whole
