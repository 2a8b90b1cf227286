"""What does it cost to resume in the middle of an epoch? Time to the first batch at 90 % of it, against 1 %.

The floor is the first batch from the start. The peer is a torch DataLoader, which has no position to resume from and
reads the consumed rows again.
"""

from __future__ import annotations

import argparse
import json

from _data import write_tabular
from _measure import Bar, Bench, Measure, Report, main, note, python


def measure(bench: Bench) -> Report:
    options = bench.options
    files = bench.storage / "rows"
    write_tabular(files, options.rows, options.files, 62_500)
    took: dict[str, list[float]] = {"0.0": [], "0.01": [], "0.9": []}
    loader: dict[str, list[float]] = {"0.0": [], "0.9": []}
    for _ in bench.rounds():
        directory = bench.directory("ours")
        bench.run(python("ours/data_resume.py", directory, files, options.times, options.pause_s, *took), directory)
        for place, seconds in json.loads((directory / "took.json").read_text()).items():
            took[place] += [1e3 * s for s in seconds]
        directory = bench.directory("loader")
        bench.run(python("peers/data_resume.py", directory, files, options.peer_times, *loader), directory)
        for place, seconds in json.loads((directory / "took.json").read_text()).items():
            loader[place] += [1e3 * s for s in seconds]
    # The bar leaves room for noise: reading the consumed rows again would take 50 times as long.
    bar = Bar("<=", 1.25, ratio=True)
    floor = {"from the start": took["0.0"]}
    return Report(
        [
            Measure("first batch at 90 %", "ms", took["0.9"], {"at 1 %": took["0.01"]}, bar, floor),
            Measure("first batch at 90 %", "ms", took["0.9"], {"DataLoader": loader["0.9"]}, None, floor),
        ],
        {"DataLoader, from the start": note(loader["0.0"], "ms")},
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=2_000_000, help="in all files together (default 2,000,000)")
    parser.add_argument("--files", type=int, default=32)
    parser.add_argument("--times", type=int, default=5, help="resumes from each position in a round (default 5)")
    parser.add_argument("--peer-times", type=int, default=2, help="resumes of the peer in a round (default 2)")
    parser.add_argument("--pause-s", type=float, default=0.7, help="seconds between two resumes (default 0.7)")


if __name__ == "__main__":
    main("resume", measure, repeats=2, add_arguments=add_arguments)
