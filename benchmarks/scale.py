"""Does the controller's cost of an event grow with the number of workers? And what do ten thousand workers cost?

The real controller, journal and checkpoints on disk, with simulated workers on a clock that runs as fast as the
controller allows. Each worker reports once a second and saves every minute; then one in a hundred dies, all others lose
their connections, and the group restarts from the last checkpoint. At the end the journal must have every report of
every worker once. The time of the simulation is not counted; worker processes, their connections and their part of a
checkpoint are not simulated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from typing import Any

from _measure import Bar, Bench, Measure, Report, check, main, note, python

SIZES = (10, 100, 1_000, 10_000)
DEAD = 0.01


def measure(bench: Bench) -> Report:
    results: dict[int, list[dict[str, float]]] = defaultdict(list)
    for _ in bench.rounds():
        for size in bench.options.workers:
            results[size].append(_simulate(bench, size))
    _print(results)
    sizes = sorted(results)
    small, most = next(size for size in sizes if size >= 100 or size == sizes[-1]), sizes[-1]
    growth = [b["cpu_us"] / a["cpu_us"] for a, b in zip(results[small], results[most], strict=True)]

    def values_of(size: int, what: str) -> list[float]:
        return [one[what] for one in results[size]]

    return Report(
        [
            Measure(f"events, {most:,} workers", "/s", values_of(most, "events_per_s"), {}, Bar(">=", float(most))),
            Measure(f"cost of an event, {most:,} to {small:,} workers", "x", growth, {}, Bar("<=", 2.0)),
        ],
        {
            f"{size:,} workers": ", ".join(
                f"{note(values_of(size, what), unit)}{text}" for what, unit, text in _COLUMNS
            )
            for size in sizes
        },
    )


_COLUMNS = (
    ("events_per_s", "/s", ""),
    ("cpu_us", "us", " of CPU for an event"),
    ("storage_us", "us", " of the storage thread"),
    ("peak_mb", "MB", " at the peak"),
    ("stop_s", "s", " to stop after deaths"),
    ("start_s", "s", " to start again"),
    ("again_s", "s", " until all have reported again"),
)


def _simulate(bench: Bench, size: int) -> dict[str, float]:
    options = bench.options
    directory = bench.directory(f"{size}-workers")
    # Few workers run for longer, to get enough events.
    seconds = max(options.seconds, options.events // size)
    dies_at = seconds - seconds % options.save_every + options.save_every // 2
    plan = {"size": size, "dies_at": dies_at, "share": DEAD, "ends_at": dies_at + 5, "save_every": options.save_every}
    bench.log(f"{size:,} workers, {dies_at:,} simulated seconds")
    bench.run(python("ours/scale.py", directory, json.dumps(plan)), directory, timeout_s=3600)
    path = directory / "result.json"
    check(path.exists(), f"{size} workers: no result was written")
    result: dict[str, float] = json.loads(path.read_text())
    return result


def _print(results: dict[int, list[dict[str, Any]]]) -> None:
    rows = [("workers", "events/s", "CPU/event", "storage", "peak", "stop", "start", "all again")]
    for size, samples in sorted(results.items()):
        cells = [note([one[what] for one in samples], unit) for what, unit, _ in _COLUMNS]
        rows.append((f"{size:,}", *cells))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        line = "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print(f"  {line}", file=sys.stderr)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, nargs="+", default=SIZES, help="how many (default 10 to 10,000)")
    parser.add_argument("--seconds", type=int, default=120, help="of the workers, before some die (default 120)")
    parser.add_argument("--events", type=int, default=200_000, help="at least as many (default 200,000)")
    parser.add_argument("--save-every", type=int, default=60, help="seconds between checkpoints (default 60)")


if __name__ == "__main__":
    main("scale", measure, repeats=1, add_arguments=add_arguments)
