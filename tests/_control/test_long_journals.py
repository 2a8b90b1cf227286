"""Runs with many reports: the short way by which they are read comes to what the long one does."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._control.events import Event, decode_event, encode_event
from paceline._control.journal_snapshot import EventHistory
from paceline._control.recovery import load_history, load_outline, recover_run
from paceline._control.report_aggregator import drop_superseded_reports, iter_reports
from paceline._core.codec import seal_line
from paceline._storage import journal_archive
from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import DiskRunStore
from paceline._view.journal import lines as journal_lines
from paceline.train.metrics_table import read_metrics
from paceline.train.result import to_dataframe
from properties.test_reductions import same
from view.test_view_replay import journals


def written(path: Path, events: list[Event]) -> DiskRunStore:
    layout = RunLayout(path)
    layout.journal.write_bytes(b"".join(seal_line(encode_event(event)) for event in events))
    return DiskRunStore(LocalFiles(), layout)


def check_outline(store: DiskRunStore) -> None:
    """The last report that counts is found without holding the others."""
    run, events, last = load_outline(store)
    whole_run, content = load_history(store)
    assert run == whole_run
    kept = EventHistory()
    for event in content:
        kept.add(event)
    assert events == kept.events
    counted = [one for one in drop_superseded_reports(iter_reports(content)) if one.seq <= run.num_reports]
    assert same(last.metrics if last else None, counted[-1].metrics if counted else None)
    recovered = recover_run(store, 0.0)
    recovered.journal.close()
    assert same(recovered.last_report.metrics if recovered.last_report else None, last.metrics if last else None)


def long_way(store: DiskRunStore) -> Any:
    reports = drop_superseded_reports(iter_reports(load_history(store)[1]))
    return to_dataframe([report.metrics for report in reports])


@given(lines=journals(), typed=st.booleans())
@settings(max_examples=60)
def test_what_counts_does_not_depend_on_how_the_journal_is_read(lines: list[bytes], typed: bool) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_lines, "_MIN_TYPED_BYTES", 0 if typed else 1 << 20)
        patch.setattr(journal_archive, "BLOCK_BYTES", 700)
        store = written(Path(directory), [decode_event(line) for line in lines])
        found, expected = read_metrics(store).to_dataframe(), long_way(store)
        assert (found is None) == (expected is None)
        if expected is not None:
            pandas.testing.assert_frame_equal(found, expected)
        check_outline(store)
