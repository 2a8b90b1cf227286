"""What a list shows of a run in progress, kept beside its journal: only the lines that follow need to be read.

A driver makes an outline whenever it takes a snapshot of the journal, from the one before and the lines since. It has
the few reports from which the last, the best and the pace are computed: see `ReportTable.compact`. A snapshot is taken
only when no report waits for those of other ranks.
"""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from paceline._control.journal_snapshot import JournalSnapshot, read_snapshot
from paceline._engine.messages import WorkerFailure
from paceline._storage.journal_archive import iter_journal_blocks
from paceline._storage.run_layout import RunLayout
from paceline._view.journal.lines import decode_journal_lines
from paceline._view.journal.replay import JournalReplay
from paceline._view.journal.report_table import CompactedRowsError, MetricColumn, NonNumericColumn, ReportTable
from paceline._view.pace import choose_rows

_MAX_CUTS = 8
"""From how many of the last checkpoints a later attempt can resume without reading the whole journal."""
_COMPACTED_BYTES = 4 << 20
_NO_OUTLINE = b"null"


class _OutlinedColumn(msgspec.Struct, frozen=True):
    rows: bytes
    values: bytes
    is_integer: bool
    goes_backwards: bool


class _OutlinedAttempt(msgspec.Struct, frozen=True):
    number: int
    began_at: float
    size: int
    failures: tuple[WorkerFailure, ...]
    """The first one."""


class _OutlinedPosition(msgspec.Struct, frozen=True):
    at: float
    attempt: int
    seq: int
    cursors: msgspec.Raw


class JournalOutline(msgspec.Struct, frozen=True):
    seqs: bytes
    ats: bytes
    attempts: bytes
    columns: dict[str, _OutlinedColumn]
    others: dict[str, tuple[tuple[int, Any], ...]]
    """Row and value of what is no number."""
    compacted_until: int
    cuts: tuple[int, ...]
    updated_at: float
    began_at: float
    last_at: float
    past: tuple[_OutlinedAttempt, ...]
    positions: tuple[_OutlinedPosition, ...]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JournalOutline | None).decode


def make_outline(layout: RunLayout, length: int) -> bytes:
    """Make the outline of the first `length` bytes of a journal."""
    snapshot = read_snapshot(layout)
    replay = restore_replay(layout, snapshot) if snapshot is not None and snapshot.length <= length else None
    start = snapshot.length if replay is not None and snapshot is not None else 0
    replay = replay or JournalReplay(str(layout.journal), layout.journal)
    num_bytes = 0
    try:
        for block in iter_journal_blocks(layout.journal, length, start=start):
            lines = decode_journal_lines(block, replay.reports.columns)
            replay.add_lines(lines)
            if lines.num_bytes < len(block) or replay.problem is not None:
                return _NO_OUTLINE
            num_bytes += len(block)
            if num_bytes >= _COMPACTED_BYTES:
                num_bytes = 0
                _compact(replay)
    except CompactedRowsError:
        return _NO_OUTLINE
    _compact(replay)
    return _encode(_build_outline(replay))


def restore_replay(layout: RunLayout, snapshot: JournalSnapshot) -> JournalReplay | None:
    """Return the replay of the lines that a snapshot covers; None if it has no outline."""
    try:
        outline = _decode(snapshot.outline)
    except msgspec.MsgspecError:
        return None
    if outline is None:
        return None
    replay = JournalReplay(str(layout.journal), layout.journal)
    replay.restore(snapshot.restore_run(), snapshot.restore_history().events, snapshot.num_lines, outline.updated_at)
    _restore_table(replay.reports, outline)
    history = replay.projection.history
    history.began_at, history.last_at = outline.began_at, outline.last_at
    for past in outline.past:
        history.restore_attempt(past.number, past.began_at, past.size, past.failures)
    replay.restore_positions((each.at, each.attempt, each.seq, each.cursors) for each in outline.positions)
    return replay


def _compact(replay: JournalReplay) -> None:
    reports, run = replay.reports, replay.run
    if reports:
        cuts = sorted(record.seq for record in run.checkpoints)[-_MAX_CUTS:]
        reports.compact([*choose_rows(reports), 0, *(row for row, _ in replay.dataset_epochs())], cuts)


def _build_outline(replay: JournalReplay) -> JournalOutline:
    reports, history = replay.reports, replay.projection.history
    return JournalOutline(
        reports.seqs.tobytes(),
        reports.ats.tobytes(),
        reports.attempts.tobytes(),
        {
            name: _OutlinedColumn(
                column.rows.tobytes(), column.values.tobytes(), column.is_integer, column.goes_backwards
            )
            for name, column in reports.columns.items()
        },
        {name: tuple(zip(column.rows, column.values, strict=True)) for name, column in reports.non_numeric.items()},
        reports.compacted_until,
        reports.cuts,
        replay.updated_at,
        history.began_at,
        history.last_at,
        tuple(
            _OutlinedAttempt(attempt.number, attempt.began_at, attempt.size, attempt.first_failures())
            for attempt in history.attempts
        ),
        tuple(_OutlinedPosition(*position) for position in replay.list_positions()),
    )


def _restore_table(reports: ReportTable, outline: JournalOutline) -> None:
    reports.seqs.frombytes(outline.seqs)
    reports.ats.frombytes(outline.ats)
    reports.attempts.frombytes(outline.attempts)
    reports.compacted_until, reports.cuts = outline.compacted_until, outline.cuts
    for name, column in outline.columns.items():
        rows, numbers = array("i", column.rows), array("d", column.values)
        num_ordered = max(0, len(rows) - 1)
        reports.columns[name] = MetricColumn(
            rows, numbers, column.is_integer, goes_backwards=column.goes_backwards, num_ordered=num_ordered
        )
    for name, others in outline.others.items():
        reports.non_numeric[name] = NonNumericColumn(
            array("i", [row for row, _ in others]), [value for _, value in others]
        )
