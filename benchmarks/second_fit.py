"""How long does a `fit()` take that is not the first in its process?

Two workers, one all-reduce, one report, with the process that workers fork from already warm. Lightning forks its
workers too (`ddp_fork`). The floor is two forks of a process that has imported torch, with one all-reduce.
"""

from __future__ import annotations

import argparse

from _measure import Bar, Bench, Measure, Report, check, main, note, python, read_rank_results, read_times

from paceline.train import Result

FORKS = 5


def measure(bench: Bench) -> Report:
    fits = bench.options.fits
    first: dict[str, list[float]] = {"ours": [], "Lightning": [], "Ray Train": []}
    later: dict[str, list[float]] = {"ours": [], "Lightning": [], "Ray Train": []}
    floor: list[float] = []
    for number in bench.rounds():
        directory = bench.directory("ours")
        bench.run(python("ours/second_fit.py", directory, fits), directory)
        took = read_times(directory, fits)
        for fit in range(fits):
            metrics = Result.from_path(directory / f"run-{fit}").metrics
            check(metrics == {"total": 2.0}, f"fit {fit + 1} reported {metrics}")
        first["ours"].append(took[0])
        later["ours"] += took[1:]
        directory = bench.directory("floor")
        bench.run(python("floors/forked_group.py", directory, FORKS), directory)
        floor += read_times(directory, FORKS)[1:]
        for name, title, times in (("lightning", "Lightning", fits), ("ray", "Ray Train", 2)):
            if bench.takes_part(name, number):
                directory = bench.directory(name)
                bench.run(bench.peer(name, f"peers/{name}_second_fit.py", directory, times), directory)
                took = read_times(directory, times)
                for fit in range(times):
                    for result in read_rank_results(directory, f"fit_{fit}_rank_{{}}.json"):
                        check(result == {"total": 2.0}, f"fit {fit + 1} of {title} wrote {result}")
                first[title].append(took[0])
                later[title] += took[1:]
    peers = {title: later[title] for title in ("Lightning", "Ray Train") if later[title]}
    return Report(
        [Measure("second fit", "s", later["ours"], peers, Bar("<", 0.15), floor={"fork and meet": floor})],
        {"first fit": ", ".join(f"{name} {note(samples, 's')}" for name, samples in first.items() if samples)},
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fits", type=int, default=11, help="how many in each process (default 11)")


if __name__ == "__main__":
    main("second fit", measure, peers=("lightning", "ray"), repeats=3, add_arguments=add_arguments)
