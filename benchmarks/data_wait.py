"""How much of a step is spent waiting for its batch, where the readers can keep up?

Two workers take batches of 1,024 tabular rows and are busy elsewhere for 20 ms after each, as with a GPU.
"""

from __future__ import annotations

import argparse

from _data import write_tabular
from _measure import Bar, Bench, Measure, Report, check, from_ranks, main, note, python


def measured(bench: Bench) -> Report:
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
        for rank, said in enumerate(from_ranks(directory)):
            waits = said["waits"]
            check(len(waits) == options.steps, f"rank {rank} took {len(waits)} of {options.steps} steps")
            # The first batch is what the start of an epoch costs; it stands by itself.
            shares.append(100 * sum(waits[1:]) / said["took"])
            longest.append(1e3 * max(waits[1:]))
    return Report(
        [Measure("waiting", "%", shares, {}, Bar("<", 2))],
        {"longest wait": note(longest, "ms"), "step": f"{options.step_ms:g} ms"},
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=400, help="of each worker (default 400)")
    parser.add_argument("--step-ms", type=float, default=20, help="how long each is busy (default 20)")


if __name__ == "__main__":
    main("waiting for data", measured, repeats=2, add_arguments=add_arguments)
