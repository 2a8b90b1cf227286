"""Runs with many reports: the short way by which they are read comes to what the long one does."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._control.events import DriverStarted, Event, Reported, decode_event, encode_event
from paceline._control.recovery import load_history, load_outline, recover_run
from paceline._control.report_aggregator import drop_superseded_reports, iter_reports
from paceline._core.codec import seal_line
from paceline._core.reductions import ReductionMark
from paceline._engine.messages import WorkerFailed, WorkerFailure, WorkerReturned, WorkersStopped
from paceline._storage import journal_archive
from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import DiskRunStore
from paceline._view.journal import lines as journal_lines
from paceline.train.metrics_table import read_metrics
from paceline.train.result import to_dataframe
from view.test_view_replay import journals


def report(rank: int, seq: int, attempt: int = 1, reduce: tuple[ReductionMark, ...] = (), **more: Any) -> Reported:
    metrics = msgspec.Raw(msgspec.json.encode({"loss": seq + rank / 10, "attempt": attempt}))
    return Reported(attempt, rank, seq, metrics, float(seq), "x.py:1", reduce=reduce, **more)


MEAN = (ReductionMark(("loss",), "mean"),)


def written(path: Path, events: list[Event]) -> DiskRunStore:
    layout = RunLayout(path)
    layout.journal.write_bytes(b"".join(seal_line(encode_event(event)) for event in events))
    return DiskRunStore(LocalFiles(), layout)


BEGUN_AGAIN: list[Event] = [
    DriverStarted(1, 1),
    *(report(0, seq) for seq in (1, 2, 3)),
    WorkerFailed(1, 0, WorkerFailure(0, "user", "ValueError: x")),
    WorkersStopped(1),
]
ENDED: dict[str, list[Event]] = {
    "of one rank": [DriverStarted(1, 0), report(0, 1), report(0, 2), WorkerReturned(1, 0, 2), WorkersStopped(1)],
    "reduced over two": [
        DriverStarted(2, 0),
        *(report(rank, seq, reduce=MEAN) for seq in (1, 2) for rank in (1, 0)),
    ],
    "reduced now and then": [
        DriverStarted(2, 0),
        *(report(rank, seq, reduce=MEAN if seq % 2 else ()) for seq in (1, 2, 3, 4) for rank in (0, 1)),
    ],
    "begun again without a checkpoint": BEGUN_AGAIN,
    "begun again and reported": [*BEGUN_AGAIN, report(0, 1, attempt=2)],
}


@pytest.mark.parametrize("name", ENDED)
def test_the_last_report_is_found_without_holding_the_others(name: str, tmp_path: Path) -> None:
    store = written(tmp_path, ENDED[name])
    run, events, last = load_outline(store)
    whole_run, content = load_history(store)
    assert run == whole_run
    assert events == [event for event in content if not isinstance(event, Reported)]
    counted = [one for one in drop_superseded_reports(iter_reports(content)) if one.seq <= run.num_reports]
    assert (last.metrics if last else None) == (counted[-1].metrics if counted else None)
    recovered = recover_run(store, 0.0)
    recovered.journal.close()
    assert (recovered.last_report.metrics if recovered.last_report else None) == (last.metrics if last else None)


def long_way(store: DiskRunStore) -> Any:
    reports = drop_superseded_reports(iter_reports(load_history(store)[1]))
    return to_dataframe([report.metrics for report in reports])


@pytest.mark.parametrize("name", ENDED)
def test_a_data_frame_has_the_reports_that_count(name: str, tmp_path: Path) -> None:
    store = written(tmp_path, [*ENDED[name], *([report(0, 2, attempt=2)] if "and reported" in name else [])])
    pandas.testing.assert_frame_equal(read_metrics(store).to_dataframe(), long_way(store))


@given(lines=journals(), typed=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_data_frame_does_not_depend_on_how_the_journal_is_read(lines: list[bytes], typed: bool) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_lines, "_MIN_TYPED_BYTES", 0 if typed else 1 << 20)
        patch.setattr(journal_archive, "BLOCK_BYTES", 700)
        store = written(Path(directory), [decode_event(line) for line in lines])
        found, expected = read_metrics(store).to_dataframe(), long_way(store)
        assert (found is None) == (expected is None)
        if expected is not None:
            pandas.testing.assert_frame_equal(found, expected)
