"""Combines the reports of ranks within one attempt. Pure; part of `step`.

It handles announced checkpoints, reduced metrics, and the dataset cursors that a checkpoint may need.
"""

from msgspec.structs import replace

from paceline._control.events import CheckpointStaged, Reported, WorkerFailure
from paceline._control.report_aggregator import encode_reduced_metrics
from paceline._control.run import PendingCheckpoint, PendingReduction, Run, Running
from paceline._core.checkpoint_records import ValidationTask
from paceline._core.cursor import Cursors
from paceline._core.reductions import Path
from paceline._core.trie import Trie

NO_RANKS: Trie[bool] = Trie()


def add_reduced_report(live: Running, event: Reported) -> tuple[Running, WorkerFailure | None]:
    """Add a report with metrics to reduce; return a failure if ranks reduce a metric differently."""
    reductions = tuple((mark.path, mark.how) for mark in event.reduce)
    before = live.reducing.get(event.seq, None)
    problem = None
    if before is None:
        before = PendingReduction(reductions)
    elif before.reductions != reductions:
        both = dict(before.reductions)
        for path, how in reductions:
            if both.setdefault(path, how) != how and problem is None:
                problem = _reduction_mismatch(before, event, path)
        before = replace(before, reductions=tuple(both.items()))
    after = replace(before, by_rank=before.by_rank.put(event.rank, event))
    return replace(live, reducing=live.reducing.put(event.seq, after)), problem


def _reduction_mismatch(before: PendingReduction, event: Reported, path: Path) -> WorkerFailure:
    other = next(report for report in before.by_rank.values() if any(mark.path == path for mark in report.reduce))
    first, second = sorted((other, event), key=lambda report: report.rank)  # Independent of the order of arrival.
    one, two = (next(mark.how for mark in report.reduce if mark.path == path) for report in (first, second))
    message = (
        f"ReportMismatchError: in report {event.seq}, rank {first.rank} reduces {'/'.join(path)!r} by train.{one}, "
        f"at {first.where}, and rank {second.rank} by train.{two}, at {second.where}"
        "\n\nhint: reduce a metric in the same way on all ranks, or give the other one another name"
    )
    return WorkerFailure(first.rank, "mismatch", message, frames=(first.where,), retriable=False)


def make_mismatch(
    pending: PendingCheckpoint, rank: int, num_reports: int, where: str, at: float = 0.0
) -> WorkerFailure:
    """The failure if a rank ended after `num_reports` reports, the last at `where`, while a checkpoint waits for it."""
    last = f"; the last at {where}" if where else ""
    message = (
        f"ReportMismatchError: rank {pending.rank} waits for every rank in report {pending.seq} with a checkpoint, "
        f"called at {pending.where}, but rank {rank} returned after {format_report_count(num_reports)}{last}"
    )
    return WorkerFailure(pending.rank, "mismatch", message, at=at, frames=(pending.where,), retriable=False)


def make_count_mismatch(fewest: tuple[int, int, str], most: tuple[int, int, str]) -> WorkerFailure:
    """The failure if all ranks ended, but not after equally many reports: rank, count, and the line of the last one."""
    (rank, num_reports, where), (other, num_others, other_where) = fewest, most
    last, other_last = (f", the last at {line}," if line else "" for line in (where, other_where))
    message = (
        f"ReportMismatchError: rank {rank} returned after {format_report_count(num_reports)}{last} while rank {other} "
        f"made {num_others}{other_last.removesuffix(',')}"
    )
    return WorkerFailure(rank, "mismatch", message, frames=(where,) if where else (), retriable=False)


def format_report_count(num_reports: int) -> str:
    return "1 report" if num_reports == 1 else f"{num_reports} reports"


def complete_reductions(live: Running) -> Running:
    """Give checkpoints their reduced metrics, once all ranks have made the report. Rank 0 decides what is reduced."""
    for seq in live.reducing:
        if seq > live.progress.minimum:
            break
        reports = live.reducing[seq].by_rank
        pending = live.pending
        if 0 in reports and any(p.seq == seq for p in pending):
            metrics = encode_reduced_metrics(reports.values())
            pending = tuple(replace(p, metrics=metrics) if p.seq == seq else p for p in pending)
        live = replace(live, reducing=live.reducing.without(seq), pending=pending)
    return live


def announce_checkpoint(live: Running, event: Reported, now: float) -> tuple[PendingCheckpoint, ...]:
    for at, pending in enumerate(live.pending):
        if pending.seq == event.seq:
            pending = replace(
                pending,
                unstaged=pending.unstaged.put(event.rank, True),
                validation=_choose_validation(pending.validation, event),
            )
            return live.pending[:at] + (pending,) + live.pending[at + 1 :]
    metrics = next((raw for seq, raw in live.recent if seq == event.seq), event.metrics)
    assert event.checkpoint is not None
    new = PendingCheckpoint(
        event.seq,
        event.checkpoint,
        event.rank,
        event.where,
        metrics,
        unstaged=NO_RANKS.put(event.rank, True),
        since=now,
        validation=_choose_validation(None, event),
    )
    return tuple(sorted((*live.pending, new), key=lambda pending: pending.seq))


def announce_late_checkpoint(run: Run, live: Running, event: CheckpointStaged, name: str, now: float) -> Running:
    """Add a checkpoint of the last report of a rank that waits there, unless it is known already."""
    seq, rank = event.seq, event.staged.rank
    known = {*run.committing, *(p.seq for p in live.pending), *(c.seq for c in run.checkpoints)}
    metrics = next((raw for number, raw in live.recent if number == seq), None)
    if seq in known or seq != live.progress[rank] or metrics is None:
        return live
    return replace(live, pending=(*live.pending, PendingCheckpoint(seq, name, rank, "", metrics, since=now)))


def select_awaited_positions(live: Running) -> Trie[Trie[Cursors]]:
    """The dataset cursors that a checkpoint may still need."""
    awaited = live.positions
    pending = {pending.seq for pending in live.pending}
    for seq in live.positions:
        if seq > live.progress.minimum:
            break
        if seq not in pending:
            awaited = awaited.without(seq)
    return awaited


def _choose_validation(before: tuple[int, ValidationTask] | None, event: Reported) -> tuple[int, ValidationTask] | None:
    """Take the request of the lowest rank: the choice must not depend on the order of arrival."""
    if event.validation is None or (before is not None and before[0] < event.rank):
        return before
    return event.rank, event.validation
