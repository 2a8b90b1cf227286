"""What memory do exchanges of ten times the limit need? Peak of all processes, beyond that of an iteration.

Rows of 40 bytes through each operator that brings rows together, with a limit of data in flight of a tenth of them. The
results are checked. `unique` returns a quarter of the rows as Python objects, which is most of its memory.
"""

from __future__ import annotations

import argparse

from _measure import Bar, Bench, Measure, Report, main, note, python
from data_memory import measure_peaks

OPERATORS = ("sort", "group-by", "join", "random_shuffle", "unique")
ROW_BYTES = 40


def measure(bench: Bench) -> Report:
    options = bench.options
    num_rows = int(options.megabytes * 1e6) // ROW_BYTES
    peaks: dict[str, list[float]] = {name: [] for name in ("iterate", *OPERATORS)}
    for _ in bench.rounds():
        for name, samples in peaks.items():
            directory = bench.directory("ours")
            command = python("ours/data_spill.py", directory, name, num_rows, options.megabytes / 10)
            samples.append(measure_peaks(bench, command, directory)[1])
    bar = Bar("<", options.megabytes)
    least = peaks.pop("iterate")
    return Report(
        [
            Measure(f"{name}, beyond an iteration", "MB", [a - b for a, b in zip(samples, least, strict=True)], {}, bar)
            for name, samples in peaks.items()
        ],
        {
            "peak of an iteration": note(least, "MB"),
            "rows": f"{options.megabytes:.0f} MB, limit {options.megabytes / 10:.0f} MB",
        },
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=float, default=640, help="of rows (default 640)")


if __name__ == "__main__":
    main("memory of exchanges", measure, repeats=1, add_arguments=add_arguments)
