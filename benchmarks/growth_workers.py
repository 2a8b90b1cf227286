"""Which costs grow with the number of workers? 1 to 16 of them on one machine.

A cold run (from `python script.py` to its exit, one all-reduce and one report), against the same under torchrun; a
`fit()` that is not the first of its process; reports from all workers at full speed, until the journal has them; unique
memory of a worker. The floor of the cold run is `import torch`, which at least one process has to do.

All workers share the cores. With more workers than cores they wait for each other: the question is whether the cost of
each stays the same, not whether the machine gets faster.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from _measure import Bar, Bench, Curve, Report, check, main, note, python, read_rank_results, read_times

from paceline.train import Result

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
TIMEOUT_S = 180.0
PEER_AGAIN = 2
"""torchrun starts larger groups in the first round only, because each worker imports torch."""

Line = dict[float, list[float]]
Lines = dict[str, Line]


def measure(bench: Bench) -> Report:
    options = bench.options
    ours: Lines = defaultdict(lambda: defaultdict(list))
    torchrun: Lines = defaultdict(lambda: defaultdict(list))
    floor: Line = defaultdict(list)
    sizes = sorted(options.workers)
    for number in bench.rounds():
        for size in sizes:
            bench.log(f"{size} workers")
            _measure_warm(bench, size, ours)
            if not options.no_cold:
                _measure_cold(bench, size, ours)
                again = number == 0 or size <= PEER_AGAIN
                if again and size <= options.peer_workers and bench.takes_part("torchrun", number):
                    _measure_cold_torchrun(bench, size, torchrun)
        if not options.no_cold:
            alone = bench.run([sys.executable, "-c", "import torch"], bench.directory("floor"), ONE_THREAD).seconds
            for size in sizes:
                floor[size].append(alone)
    cores = len(os.sched_getaffinity(0))
    shared = f"{cores}; {sizes[-1]} workers are more than that, and share them" if sizes[-1] > cores else f"{cores}"
    firsts = "; ".join(f"{size}: {note(ours['first'][size], 's')}" for size in sizes)
    return Report((), {"cores": shared, "first fit": firsts}, _curves(ours, torchrun, floor))


def _curves(ours: Lines, torchrun: Lines, floor: Line) -> list[Curve]:
    most = max(ours["later"]) / min(ours["later"])

    def curve(name: str, unit: str, bar: Bar | None, key: str, floor: dict[str, Line] | None = None) -> Curve:
        peers = {"torchrun": torchrun[key]} if torchrun[key] else {}
        return Curve(name, unit, "workers", ours[key], peers, floor or {}, bar)

    curves = [
        # Each worker is forked and connected, so the cost may grow with their number.
        curve("second fit", "s", Bar("<=", most), "later"),
        curve("reports of all workers that arrive", "/s", Bar(">=", 0.5), "arrived"),
        curve("a round of reports, one of each worker", "us", Bar("<=", 2 * most), "round"),
        curve("memory of a worker", "MB", Bar("<=", 1.1), "unique"),
    ]
    if ours["cold"]:
        curves += [
            curve("cold run", "s", Bar("<", 0.6, ratio=True), "cold", {"import torch": floor}),
            curve("processor time of a cold run", "s", None, "cpu"),
        ]
    return curves


def _measure_cold(bench: Bench, size: int, ours: Lines) -> None:
    directory = bench.directory(f"cold-{size}")
    ended = bench.run(_command(directory, size, 1, 0), directory, ONE_THREAD, timeout_s=TIMEOUT_S)
    metrics = Result.from_path(directory / "run-0").metrics
    check(metrics == {"total": size}, f"the run of {size} workers reported {metrics}")
    ours["cold"][size].append(ended.seconds)
    ours["cpu"][size].append(ended.cpu_s)


def _measure_cold_torchrun(bench: Bench, size: int, torchrun: Lines) -> None:
    directory = bench.directory(f"torchrun-{size}")
    command = bench.torchrun("peers/torchrun_cold_start.py", directory, size=size)
    ended = bench.run(command, directory, ONE_THREAD, timeout_s=TIMEOUT_S)
    results = read_rank_results(directory, size=size)
    check(all(one == {"total": size} for one in results), f"torchrun's {size} workers wrote {results}")
    torchrun["cold"][size].append(ended.seconds)
    torchrun["cpu"][size].append(ended.cpu_s)


def _measure_warm(bench: Bench, size: int, ours: Lines) -> None:
    """Several fits in one process; the last reports at full speed."""
    fits, reports = bench.options.fits, max(1, bench.options.reports // size)
    directory = bench.directory(f"warm-{size}")
    bench.run(_command(directory, size, fits, reports), directory, ONE_THREAD, timeout_s=TIMEOUT_S)
    *took, arrived_at = read_times(directory, fits + 1)
    ranks = read_rank_results(directory, size=size)
    seconds = arrived_at - min(rank["began"] for rank in ranks)
    num_rounds = _num_reports(directory / f"run-{fits - 1}")
    check(num_rounds == reports + 1, f"{num_rounds} rounds of reports arrived instead of {reports + 1}")
    ours["first"][size].append(took[0])
    ours["later"][size] += took[1:-1]
    ours["arrived"][size].append(size * reports / seconds)
    ours["round"][size].append(1e6 * seconds / reports)
    ours["unique"][size].append(statistics.median(rank["unique_mb"] for rank in ranks))


def _num_reports(run: Path) -> int:
    from paceline._control.recovery import load_history
    from paceline._storage.run_location import RunLocation

    return load_history(RunLocation.from_path(str(run)).open_run_store_for_reading())[0].num_reports


def _command(directory: Path, size: int, fits: int, reports: int) -> list[str]:
    return python("ours/growth_workers.py", directory, size, fits, reports)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sizes = (1, 2, 4, 8, 16)
    parser.add_argument("--workers", type=int, nargs="+", default=sizes, help="workers of a run (default 1 to 16)")
    parser.add_argument("--peer-workers", type=int, default=8, help="largest group of torchrun (default 8)")
    parser.add_argument("--no-cold", action="store_true", help="skip the cold runs, and with them torchrun")
    parser.add_argument(
        "--fits", type=int, default=5, help="fits in one process, the last one with reports (default 5)"
    )
    parser.add_argument("--reports", type=int, default=40_000, help="reports of all workers together (default 40,000)")


if __name__ == "__main__":
    main("as workers grow", measure, peers=("torchrun",), repeats=2, add_arguments=add_arguments)
