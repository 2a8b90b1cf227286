"""A run as a block of lines, for a terminal or a notebook; and as one line. Pure: what is seen in, styled text out.

What does not fit into a line goes on in the next, and where there are too few lines the less telling rows are summed up
in one. All texts are made harmless here.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from paceline._view import words
from paceline._view.model import Spent, Worker
from paceline._view.pace import COUNTERS
from paceline._view.sparks import sparkline
from paceline.train.seen import Metric, Seen

Piece = tuple[str, str]
"""A text and its style: `bold`, `dim`, a colour, several of these, or none."""
Line = tuple[Piece, ...]

MOST_METRICS = 10
MOST_WORKERS = 8
_SPARK = 32
_LEAST_WIDTH = 20
_TELLING = ("failed", "hangs", "gone", "starting", "returned", "running")
_STYLES = {"failed": "bold red", "hangs": "bold red", "gone": "red", "starting": "dim", "returned": "green"}
_COUNTERS = {name for names in COUNTERS.values() for name in names}
"""What only rises is not drawn."""
_PARTS = ("data", "compute", "report", "checkpoint", "starting", "between")


def block(seen: Seen, width: int, height: int) -> list[Line]:
    """In at most so many columns; in at most so many lines, but never fewer than tell how it stands."""
    width = max(_LEAST_WIDTH, width)
    above = [*_flow(_heading(seen), width, first=0), *_flow(_pace(seen), width)]
    below = [*_flow(_checkpoint(seen), width), *_flow(_time(seen), width)]
    if seen.hang:
        below += _flow([("hang", "bold red"), (words.harmless(seen.hang), "red")], width)
    room = height - 1 - len(above) - len(below)
    num_workers = min(len(seen.workers), MOST_WORKERS, max(0, room // 2 - 1))
    workers = _workers(seen.workers, num_workers, width)
    metrics = _metrics(seen.metrics, max(1, min(MOST_METRICS, room - len(workers))), width)
    return [_cut(line, width) for line in (*above, *metrics, *below, *workers)]


def in_one_line(seen: Seen) -> str:
    """All that matters in one line, for a file."""
    parts = [_reached(seen)]
    if seen.metrics:
        shown = words.values({metric.name: metric.value for metric in seen.metrics[:MOST_METRICS]})
        parts[0] += f": {shown}"
    if seen.checkpoint is not None:
        old = f" {words.age(seen.checkpoint_age_s)}" if seen.checkpoint_age_s is not None else ""
        parts.append(f"{seen.checkpoint.name}{old}")
    if seen.spent is not None:
        parts.append(", ".join(f"{name} {share} %" for name, share in shares(seen.spent) if share))
    if seen.hang:
        parts.append(words.harmless(seen.hang))
    return "; ".join(parts)


def shares(spent: Spent) -> list[tuple[str, int]]:
    """Where the time went, in whole hundredths that sum to all of it."""
    amounts = {name: max(0.0, getattr(spent, f"{name}_s")) for name in _PARTS}
    whole = sum(amounts.values())
    if not whole > 0:
        return []
    exact = {name: 100 * amount / whole for name, amount in amounts.items()}
    found = {name: int(share) for name, share in exact.items()}
    by_rest = sorted(exact, key=lambda name: found[name] - exact[name])
    for name in by_rest[: 100 - sum(found.values())]:
        found[name] += 1
    return [*found.items()]


def width_of(text: str) -> int:
    """In columns of a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def plain(line: Line) -> str:
    return "".join(text for text, _ in line)


def _heading(seen: Seen) -> list[Piece]:
    pieces = [(f"run {words.harmless(seen.name)}", "bold")]
    if seen.attempt > 1:
        pieces.append((f"attempt {seen.attempt}", "yellow"))
    pieces += [(seen.state, "cyan"), (words.duration(seen.elapsed_s), "")]
    pacing = seen.pacing
    if pacing.progress is not None and pacing.done is not None:
        pieces.append((f"{pacing.kind} {words.number(_whole(pacing.done))} of {words.number(_whole(pacing.goal))}", ""))
        pieces.append((f"{100 * pacing.progress:.0f} %", ""))
    if pacing.left_s:
        pieces.append((f"{words.duration(pacing.left_s)} left", "bold"))
    return pieces


def _reached(seen: Seen) -> str:
    """`report 12 after 4:07, 3 reports/s, 40 %, 6:10 left`."""
    reached = f"report {seen.num_reports}" if seen.num_reports else "no report yet"
    parts = [f"{reached} after {words.duration(seen.elapsed_s)}"]
    if not seen.metrics and seen.state != "running":
        parts.append(seen.state)
    parts += [text for text, _ in _rates(seen)]
    if seen.pacing.progress is not None:
        parts.append(f"{100 * seen.pacing.progress:.0f} %")
    if seen.pacing.left_s:
        parts.append(f"{words.duration(seen.pacing.left_s)} left")
    return ", ".join(parts)


def _pace(seen: Seen) -> list[Piece]:
    if not seen.num_reports:
        return []
    return [(f"report {seen.num_reports}", ""), *_rates(seen)]


def _rates(seen: Seen) -> list[Piece]:
    pacing = seen.pacing
    rates = {"step": pacing.steps_per_s, "epoch": pacing.epochs_per_s}
    told = [(words.rate(rate, noun), "") for noun, rate in rates.items() if rate is not None]
    reports = pacing.reports_per_s
    # Where each report is a step or an epoch, that says it all.
    if reports is None or any(rate and math.isclose(rate, reports, rel_tol=0.01) for rate in rates.values()):
        return told
    return [(words.rate(reports, "report"), ""), *told]


def _metrics(metrics: Sequence[Metric], at_most: int, width: int) -> list[Line]:
    shown = metrics if len(metrics) <= at_most else metrics[: at_most - 1]
    names = [words.harmless(metric.name) for metric in shown]
    values = [words.value(metric.value) for metric in shown]
    name_width = min(max(map(width_of, names), default=0), width // 3)
    value_width = min(max(map(width_of, values), default=0), width // 3)
    room = min(_SPARK, width - name_width - value_width - 6)
    lines: list[Line] = []
    for metric, name, value in zip(shown, names, values, strict=True):
        head = f"  {_padded(name, name_width)}  {_padded(value, value_width)}"
        is_drawn = len(metric.trace) > 1 and metric.name.rpartition("/")[2] not in _COUNTERS
        spark = sparkline(metric.trace, room) if is_drawn else ""
        lines.append(((head, ""), (f"  {spark}", "cyan")) if spark else ((head.rstrip(), ""),))
    if len(shown) < len(metrics):
        lines.append(((f"  and {words.counted(len(metrics) - len(shown), 'metric')} more", "dim"),))
    return lines


def _checkpoint(seen: Seen) -> list[Piece]:
    record = seen.checkpoint
    if record is None:
        return [("no checkpoint", "dim")] if seen.num_reports else []
    pieces = [(record.name, "")]
    if record.num_bytes:
        pieces.append((words.size(record.num_bytes), ""))
    if seen.checkpoint_age_s is not None:
        pieces.append((words.age(seen.checkpoint_age_s), ""))
    return pieces


def _time(seen: Seen) -> list[Piece]:
    if seen.spent is None:
        return []
    pieces: list[Piece] = [("time", "dim")]
    pieces += [(f"{name} {share} %", "") for name, share in shares(seen.spent) if share]
    if seen.limited_by:
        pieces.append((f"waits for {words.harmless(seen.limited_by)}", "yellow"))
    return pieces


def _workers(workers: Sequence[Worker], at_most: int, width: int) -> list[Line]:
    """Those that a person would look at first, by rank; the others in one line."""
    telling = sorted(workers, key=lambda worker: (_TELLING.index(worker.state), worker.rank))
    chosen = sorted(telling[:at_most], key=lambda worker: worker.rank)
    others = telling[at_most:]
    lines = _table(chosen, width) if chosen else []
    if others:
        states = Counter(worker.state for worker in others)
        told = ", ".join(f"{number} {state}" for state, number in states.items())
        memory = sorted(worker.rss_bytes for worker in others if worker.rss_bytes)
        each = f", {words.size(memory[0])} to {words.size(memory[-1])} each" if memory else ""
        more = f"  and {len(others)} more workers: {told}{each}" if chosen else f"  workers: {told}{each}"
        lines.append(((more, "dim"),))
    return lines


def _table(workers: Sequence[Worker], width: int) -> list[Line]:
    hosts = {worker.host for worker in workers}
    columns: dict[str, list[str]] = {
        "rank": [str(worker.rank) for worker in workers],
        "state": [worker.state for worker in workers],
        "device": [words.harmless(worker.device) for worker in workers],
        "memory": [words.size(worker.rss_bytes) if worker.rss_bytes is not None else "" for worker in workers],
        "gpu memory": [_gpu(worker) for worker in workers],
        "cores": [f"{worker.cpu:.1f}" if worker.cpu is not None else "" for worker in workers],
        "host": [words.harmless(worker.host) if len(hosts) > 1 else "" for worker in workers],
        "": [words.harmless(words.first_line(worker.failure or "")) for worker in workers],
    }
    filled = {name: texts for name, texts in columns.items() if any(texts)}
    widths = {name: max(map(width_of, (name, *texts))) for name, texts in filled.items()}
    while len(filled) > 2 and sum(widths[name] + 2 for name in filled) > width:
        least = next(name for name in ("host", "cores", "gpu memory", "device", "memory", "", "rank") if name in filled)
        filled.pop(least)
    right = {"rank", "memory", "cores"}
    lines: list[Line] = [tuple((f"  {_padded(name, widths[name], name in right)}", "dim") for name in filled)]
    for at, worker in enumerate(workers):
        lines.append(
            tuple(
                (f"  {_padded(texts[at], widths[name], name in right)}", _STYLES.get(worker.state, ""))
                for name, texts in filled.items()
            )
        )
    return lines


def _gpu(worker: Worker) -> str:
    if not worker.gpus:
        return ""
    used, total = sum(gpu.used_bytes for gpu in worker.gpus), sum(gpu.total_bytes for gpu in worker.gpus)
    return f"{words.size(used)} of {words.size(total)}"


def _flow(pieces: Iterable[Piece], width: int, first: int = 2) -> list[Line]:
    """Pieces beside each other, with what does not fit in further lines."""
    lines: list[list[Piece]] = []
    used = 0
    for text, style in pieces:
        if not lines or used + 2 + width_of(text) > width:
            indent = first if not lines else first + 2
            lines.append([(" " * indent, ""), (text, style)])
            used = indent + width_of(text)
        else:
            lines[-1] += [("  ", ""), (text, style)]
            used += 2 + width_of(text)
    return [tuple(line) for line in lines]


def _padded(text: str, width: int, right: bool = False) -> str:
    if width_of(text) > width:
        text = plain(_cut(((text, ""),), width))
    pad = " " * (width - width_of(text))
    return f"{pad}{text}" if right else f"{text}{pad}"


def _cut(line: Line, width: int) -> Line:
    if width_of(plain(line)) <= width:
        return line
    kept: list[Piece] = []
    room = width - 1
    for text, style in line:
        taken = ""
        for character in text:
            if width_of(character) > room:
                return (*kept, (f"{taken}…", style))
            room -= width_of(character)
            taken += character
        kept.append((taken, style))
    return tuple(kept)


def _whole(number: float | None) -> float | None:
    return int(number) if number is not None and number == int(number) else number
