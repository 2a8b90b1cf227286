"""How long does `fit()` take where it is not the first in its process?

Two workers, one all-reduce, one report, with the process that workers fork from already warm.
"""

from __future__ import annotations

import argparse

from _measure import Bar, Bench, Measure, Report, check, main, note, python, times_in

from paceline.train import Result


def measured(bench: Bench) -> Report:
    first: list[float] = []
    later: list[float] = []
    ray: list[float] = []
    for number in bench.rounds():
        directory = bench.directory("ours")
        bench.run(python("ours/second_fit.py", directory, bench.options.fits), directory)
        took = times_in(directory, bench.options.fits)
        for fit in range(bench.options.fits):
            metrics = Result.from_path(directory / f"run-{fit}").metrics
            check(metrics == {"total": 2.0}, f"fit {fit + 1} reported {metrics}")
        first.append(took[0])
        later += took[1:]
        if bench.ray_runs(number):
            directory = bench.directory("ray")
            bench.run(bench.ray_python("peers/ray_second_fit.py", directory, 2), directory)
            ray += times_in(directory, 2)[1:]
    peers = {"Ray Train": ray} if ray else {}
    return Report([Measure("second fit", "s", later, peers, Bar("<", 0.15))], {"first fit": note(first, "s")})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fits", type=int, default=11, help="how many in each process (default 11)")


if __name__ == "__main__":
    main("second fit", measured, repeats=3, add_arguments=add_arguments)
