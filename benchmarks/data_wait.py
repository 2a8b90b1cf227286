"""How much of a step is spent waiting for its batch if the readers can keep up?

Two workers take batches of 1,024 tabular rows and sleep for 20 ms after each, like a step on a GPU.
"""

from __future__ import annotations

import argparse

from _data import write_tabular
from _measure import Bar, Bench, Measure, Report, check, main, note, python, read_rank_results


def measure(bench: Bench) -> Report:
    options = bench.options
    files = bench.storage / "rows"
    rows = 2 * 1024 * options.steps
    write_tabular(files, rows, max(1, rows // 62_500), 62_500)
    shares: list[float] = []
    longest: list[float] = []
    for _ in bench.rounds():
        directory = bench.directory("ours")
        command = python("ours/data_wait.py", directory, files, options.step_ms)
        bench.run(command, directory, {"OMP_NUM_THREADS": "1"})
        for rank, result in enumerate(read_rank_results(directory)):
            waits = result["waits"]
            check(len(waits) == options.steps, f"rank {rank} took {len(waits)} of {options.steps} steps")
            # The first batch is the cost of starting an epoch, and not counted.
            shares.append(100 * sum(waits[1:]) / result["took"])
            longest.append(1e3 * max(waits[1:]))
    return Report(
        [Measure("waiting", "%", shares, {}, Bar("<", 2))],
        {"longest wait": note(longest, "ms"), "step": f"{options.step_ms:g} ms"},
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=400, help="steps of each worker (default 400)")
    parser.add_argument("--step-ms", type=float, default=20, help="milliseconds of a step (default 20)")


if __name__ == "__main__":
    main("waiting for data", measure, repeats=2, add_arguments=add_arguments)
