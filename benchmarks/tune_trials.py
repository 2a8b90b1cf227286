"""How long does a search of trivial trials take?

Each trial runs in its own process and makes three reports. Ours and Ray Tune take turns, both from a new interpreter to
the results; then ours alone with many more trials. The floor is a fork for each trial, two at a time, that writes three
lines.
"""

from __future__ import annotations

import argparse

from _measure import Bar, Bench, Measure, Report, check, main, note, python, read_times

from paceline.tune import ResultGrid


def measure(bench: Bench) -> Report:
    few, many = bench.options.trials, bench.options.many
    ours: list[float] = []
    long: list[float] = []
    ray: list[float] = []
    floor: dict[int, list[float]] = {few: [], many: []}
    for number in bench.rounds():
        ours.append(_run_search(bench, few))
        for trials in filter(None, floor):
            directory = bench.directory("floor")
            bench.run(python("floors/forks.py", directory, trials), directory)
            floor[trials] += read_times(directory, 1)
        if many and number < 2:
            long.append(_run_search(bench, many))
        if bench.takes_part("ray", number):
            directory = bench.directory("ray")
            bench.run(bench.peer("ray", "peers/ray_tune_trials.py", directory, few), directory, timeout_s=400)
            ray += read_times(directory, 1)
    peers = {"Ray Tune": ray} if ray else {}
    measures = [Measure(f"{few} trials", "s", ours, peers, Bar("<=", 0.05, ratio=True), {"forks": floor[few]})]
    if long:
        bar = Bar("<", 60.0) if many == 1000 else None
        measures.append(Measure(f"{many} trials", "s", long, {}, bar, {"forks": floor[many]}))
    return Report(measures, {"one of many": note([took / many for took in long], "s")} if long else {})


def _run_search(bench: Bench, trials: int) -> float:
    directory = bench.directory("ours")
    bench.run(python("ours/tune_trials.py", directory, trials), directory, timeout_s=600)
    grid = ResultGrid.from_path(directory / "search")
    check(len(grid) == trials and grid.num_terminated == trials, f"{grid.num_terminated} of {trials} trials ended")
    reports = {result.metrics["training_iteration"] for result in grid}
    check(reports == {3}, f"trials made {reports} reports")
    return read_times(directory, 1)[0]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=40, help="how many, compared with the peer (default 40)")
    parser.add_argument("--many", type=int, default=1000, help="how many, ours alone; 0 to skip (default 1000)")


if __name__ == "__main__":
    main("tune trials", measure, peers=("ray",), repeats=2, peer_repeats=1, add_arguments=add_arguments)
