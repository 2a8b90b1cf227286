"""What does `report()` of four numbers cost, and how many reports a second arrive with none lost?

Two workers report at a steady 10,000 a second, then at full speed. A rate counts what arrived: reports of a worker
divided by the time from its first report to the end of `fit()`, when all are in the journal. Then the journal is read:
it must have every report of every rank once and in order, with its own metrics. The floor is encoding the four numbers
as JSON and writing them to a pipe.
"""

from __future__ import annotations

import argparse
import json
import statistics
from array import array
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import msgspec
from _measure import Bar, Bench, Measure, Report, check, main, note, python, read_rank_results, read_times

from paceline._control import journal
from paceline._engine.messages import Reported

RATE = 10_000
PACE = 10_050
"""A little more than the bar, so that the sleep before the last report does not decide."""


@dataclass(frozen=True)
class Flow:
    """Times of one run of two workers that report."""

    median_us: float
    p99_us: float
    calls_per_s: float
    """Calls a second, of the slower worker."""
    reports_per_s: float
    """Reports a second of each worker, until the journal had them all."""
    lag_s: float
    """From the last call to the end of `fit()`."""


def measure(bench: Bench) -> Report:
    count = int(RATE * bench.options.seconds)
    flows: dict[str, list[Flow]] = defaultdict(list)
    ray: list[float] = []
    floor: list[float] = []
    for number in bench.rounds():
        for name, pace in (("paced", PACE), ("free", 0)):
            directory = bench.directory(name)
            command = python("ours/report_rate.py", directory, name, count, pace)
            bench.run(command, directory, timeout_s=60 + 6 * bench.options.seconds)
            flows[name].append(_read_flow(directory, name, count))
            _check_nothing_lost(directory / name / "journal.jsonl", count)
        directory = bench.directory("floor")
        bench.run(python("floors/written_lines.py", directory, count), directory)
        floor += read_times(directory, 1)
        if bench.takes_part("ray", number):
            directory = bench.directory("ray")
            bench.run(bench.peer("ray", "peers/ray_report_rate.py", directory, 5), directory)
            # The first report finds an empty queue.
            ray += [1e6 * seconds for took in read_rank_results(directory) for seconds in took[1:]]
    paced, free = flows["paced"], flows["free"]
    peers = {"Ray Train": ray} if ray else {}
    written = {"JSON into a pipe": floor}
    return Report(
        [
            Measure("report() at 10,000/s, median", "us", [f.median_us for f in paced], peers, Bar("<", 50), written),
            Measure("report() flat out, median", "us", [f.median_us for f in free], peers, Bar("<=", 12), written),
            Measure("report() at 10,000/s, calls kept up", "/s", [f.calls_per_s for f in paced], {}, Bar(">=", RATE)),
            Measure("report() flat out, arrived", "/s", [f.reports_per_s for f in free], {}, Bar(">=", RATE)),
        ],
        {
            "p99": f"{note([f.p99_us for f in paced], 'us')} at pace, {note([f.p99_us for f in free], 'us')} flat out",
            "flat out, calls": note([f.calls_per_s for f in free], "/s"),
            "journal behind at the end": f"{note([f.lag_s for f in paced], 's')} at pace, "
            f"{note([f.lag_s for f in free], 's')} flat out",
            "lost": f"0 of {2 * 2 * count * bench.repeats:,}",
        },
    )


def _read_flow(directory: Path, name: str, count: int) -> Flow:
    ranks = read_rank_results(directory, f"{name}-{{}}.json")
    ended = json.loads((directory / f"{name}-fit.json").read_text())["ended"]
    took = array("q")
    for rank in range(2):
        took.frombytes((directory / f"{name}-{rank}.ns").read_bytes())
    check(len(took) == 2 * count, f"{name}: {len(took)} calls were timed instead of {2 * count}")
    return Flow(
        median_us=statistics.median(took) / 1e3,
        p99_us=statistics.quantiles(took, n=100)[98] / 1e3,
        calls_per_s=min(count / (rank["ended"] - rank["began"]) for rank in ranks),
        reports_per_s=count / (ended - min(rank["began"] for rank in ranks)),
        lag_s=ended - max(rank["ended"] for rank in ranks),
    )


def _check_nothing_lost(path: Path, count: int) -> None:
    by_rank: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    for event in journal.read_events(path):
        if isinstance(event, Reported):
            by_rank[event.rank].append((event.seq, msgspec.json.decode(event.metrics)["i"]))
    for rank, reports in by_rank.items():
        expected = [(i + 1, i) for i in range(count)]
        right = next((i for i, (a, b) in enumerate(zip(expected, reports, strict=False)) if a != b), len(reports))
        check(
            reports == expected,
            f"rank {rank} has {len(reports)} reports in the journal, of {count}; only the first {right} are in order",
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=5, help="how long to report (default 5)")


if __name__ == "__main__":
    main("report rate", measure, peers=("ray",), repeats=3, peer_repeats=1, add_arguments=add_arguments)
