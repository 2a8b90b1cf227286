"""What the reports of ranks come to together, within one attempt: checkpoints that are announced, metrics that are
reduced, positions of datasets that a checkpoint may be made with. Pure, like `step`, whose part this is.
"""

from msgspec.structs import replace

from paceline._control.events import Failure, Reported
from paceline._control.gathering import reduced_metrics
from paceline._control.run import Pending, Reducing, Running
from paceline._core.cursor import Cursors
from paceline._core.reductions import Path
from paceline._core.trie import Trie
from paceline._engine.messages import ValidationTask


def joined_by(live: Running, event: Reported) -> tuple[Running, Failure | None]:
    """One rank more has said what is reduced; and what is wrong with it, if ranks differ in how."""
    hows = tuple((mark.path, mark.how) for mark in event.reduce)
    before = live.reducing.get(event.seq, None)
    problem = None
    if before is None:
        before = Reducing(hows)
    elif before.hows != hows:
        both = dict(before.hows)
        for path, how in hows:
            if both.setdefault(path, how) != how and problem is None:
                problem = _differently(before, event, path)
        before = replace(before, hows=tuple(both.items()))
    after = replace(before, made=before.made.put(event.rank, event))
    return replace(live, reducing=live.reducing.put(event.seq, after)), problem


def _differently(before: Reducing, event: Reported, path: Path) -> Failure:
    other = next(made for made in before.made.values() if any(mark.path == path for mark in made.reduce))
    first, second = sorted((other, event), key=lambda made: made.rank)  # Whoever is heard first.
    hows = [next(mark.how for mark in made.reduce if mark.path == path) for made in (first, second)]
    message = (
        f"ReportMismatchError: in report {event.seq}, rank {first.rank} reduces {'/'.join(path)!r} by train.{hows[0]}, "
        f"at {first.where}, and rank {second.rank} by train.{hows[1]}, at {second.where}"
        "\n\nhint: one metric is reduced in one way on all ranks; give the other another name"
    )
    return Failure(first.rank, "mismatch", message, frames=(first.where,), retriable=False)


def reduced(live: Running) -> Running:
    """Give checkpoints the metrics of all ranks, once all have made the report. Rank 0 says what there is to reduce."""
    for seq in live.reducing:
        if seq > live.progress.least:
            break
        made = live.reducing[seq].made
        pending = live.pending
        if 0 in made and any(p.seq == seq for p in pending):
            metrics = reduced_metrics(made.values())
            pending = tuple(replace(p, metrics=metrics) if p.seq == seq else p for p in pending)
        live = replace(live, reducing=live.reducing.without(seq), pending=pending)
    return live


def announced(live: Running, event: Reported, now: float) -> tuple[Pending, ...]:
    for at, pending in enumerate(live.pending):
        if pending.seq == event.seq:
            pending = replace(
                pending, num_announced=pending.num_announced + 1, validation=_asked(pending.validation, event)
            )
            return live.pending[:at] + (pending,) + live.pending[at + 1 :]
    metrics = next((raw for seq, raw in live.recent if seq == event.seq), event.metrics)
    assert event.checkpoint is not None
    new = Pending(
        event.seq, event.checkpoint, event.rank, event.where, metrics, since=now, validation=_asked(None, event)
    )
    return tuple(sorted((*live.pending, new), key=lambda pending: pending.seq))


def awaited(live: Running) -> Trie[Trie[Cursors]]:
    """Those positions of datasets that a checkpoint may still be made with."""
    awaited = live.positions
    pending = {pending.seq for pending in live.pending}
    for seq in live.positions:
        if seq > live.progress.least:
            break
        if seq not in pending:
            awaited = awaited.without(seq)
    return awaited


def _asked(before: tuple[int, ValidationTask] | None, event: Reported) -> tuple[int, ValidationTask] | None:
    """Whose validation it will be must not depend on which rank is heard first."""
    if event.validation is None or (before is not None and before[0] < event.rank):
        return before
    return event.rank, event.validation
