"""How long does a `fit()` of a framework that must not be forked take, the first time and later?

Two workers of a `JaxTrainer`, one gather over both, one report. The first fit starts interpreters that import JAX;
later ones use spare interpreters. Both include the start of `jax.distributed` and its compiler.
"""

from __future__ import annotations

import argparse

from _measure import Bench, Measure, Report, check, main, python, read_times

from paceline.train import Result


def measure(bench: Bench) -> Report:
    first: list[float] = []
    later: list[float] = []
    for _ in bench.rounds():
        directory = bench.directory("ours")
        bench.run(python("ours/spawned_fit.py", directory, bench.options.fits), directory)
        took = read_times(directory, bench.options.fits)
        for fit in range(bench.options.fits):
            metrics = Result.from_path(directory / f"run-{fit}").metrics
            check(metrics == {"total": 2.0}, f"fit {fit + 1} reported {metrics}")
        first.append(took[0])
        later += took[1:]
    return Report([Measure("later fit of a JaxTrainer", "s", later, {"its first fit": first})])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fits", type=int, default=3, help="how many in each process (default 3)")


if __name__ == "__main__":
    main("spawned fit", measure, repeats=3, add_arguments=add_arguments)
