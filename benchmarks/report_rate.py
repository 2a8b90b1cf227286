"""What does `report()` of four numbers cost, and how many a second go through with none lost?

Two workers report at a steady 10,000 a second, then as fast as they can. A rate counts what has arrived: reports of a
worker divided by the time from its first to the end of `fit()`, when all are in the journal. Afterwards the journal is
read: every number of every rank has to be there once and in order, with its own metrics. The floor is to encode the
four numbers as JSON and to write them to a pipe.
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
from _measure import Bar, Bench, Measure, Report, check, from_ranks, main, note, python, times_in

from paceline._control import journal
from paceline._engine.messages import Reported

RATE = 10_000
PACE = 10_050
"""What is asked for: a little more than the bar, so that the sleep before the last report does not decide."""


@dataclass(frozen=True)
class Flow:
    """One run of two workers that report."""

    median_us: float
    p99_us: float
    called: float
    """Calls a second, of the slower worker."""
    arrived: float
    """Reports a second and worker, until the journal had them all."""
    lag_s: float
    """From the last call to the end of `fit()`."""


def measured(bench: Bench) -> Report:
    count = int(RATE * bench.options.seconds)
    flows: dict[str, list[Flow]] = defaultdict(list)
    ray: list[float] = []
    floor: list[float] = []
    for number in bench.rounds():
        for name, pace in (("paced", PACE), ("free", 0)):
            directory = bench.directory(name)
            command = python("ours/report_rate.py", directory, name, count, pace)
            bench.run(command, directory, timeout_s=60 + 6 * bench.options.seconds)
            flows[name].append(_flow(directory, name, count))
            _check_nothing_is_lost(directory / name / "journal.jsonl", count)
        directory = bench.directory("floor")
        bench.run(python("floors/written_lines.py", directory, count), directory)
        floor += times_in(directory, 1)
        if bench.takes_part("ray", number):
            directory = bench.directory("ray")
            bench.run(bench.peer("ray", "peers/ray_report_rate.py", directory, 5), directory)
            # The first one finds an empty queue.
            ray += [1e6 * seconds for took in from_ranks(directory) for seconds in took[1:]]
    paced, free = flows["paced"], flows["free"]
    peers = {"Ray Train": ray} if ray else {}
    written = {"JSON into a pipe": floor}
    return Report(
        [
            Measure("report() at 10,000/s, median", "us", [f.median_us for f in paced], peers, Bar("<", 50), written),
            Measure("report() flat out, median", "us", [f.median_us for f in free], peers, Bar("<", 50), written),
            Measure("report() at 10,000/s, calls kept up", "/s", [f.called for f in paced], {}, Bar(">=", RATE)),
            Measure("report() flat out, arrived", "/s", [f.arrived for f in free], {}, Bar(">=", RATE)),
        ],
        {
            "p99": f"{note([f.p99_us for f in paced], 'us')} at pace, {note([f.p99_us for f in free], 'us')} flat out",
            "flat out, calls": note([f.called for f in free], "/s"),
            "journal behind at the end": f"{note([f.lag_s for f in paced], 's')} at pace, "
            f"{note([f.lag_s for f in free], 's')} flat out",
            "lost": f"0 of {2 * 2 * count * bench.repeats:,}",
        },
    )


def _flow(directory: Path, name: str, count: int) -> Flow:
    ranks = from_ranks(directory, f"{name}-{{}}.json")
    ended = json.loads((directory / f"{name}-fit.json").read_text())["ended"]
    took = array("q")
    for rank in range(2):
        took.frombytes((directory / f"{name}-{rank}.ns").read_bytes())
    check(len(took) == 2 * count, f"{name}: {len(took)} calls were timed instead of {2 * count}")
    return Flow(
        median_us=statistics.median(took) / 1e3,
        p99_us=statistics.quantiles(took, n=100)[98] / 1e3,
        called=min(count / (rank["ended"] - rank["began"]) for rank in ranks),
        arrived=count / (ended - min(rank["began"] for rank in ranks)),
        lag_s=ended - max(rank["ended"] for rank in ranks),
    )


def _check_nothing_is_lost(path: Path, count: int) -> None:
    found: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    for event in journal.read_events(path):
        if isinstance(event, Reported):
            found[event.rank].append((event.seq, msgspec.json.decode(event.metrics)["i"]))
    for rank, reports in found.items():
        expected = [(i + 1, i) for i in range(count)]
        right = next((i for i, (a, b) in enumerate(zip(expected, reports, strict=False)) if a != b), len(reports))
        check(
            reports == expected,
            f"rank {rank} has {len(reports)} reports in the journal, of {count}; only the first {right} are in order",
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=5, help="how long to keep the pace (default 5)")


if __name__ == "__main__":
    main("report rate", measured, peers=("ray",), repeats=3, peer_repeats=1, add_arguments=add_arguments)
