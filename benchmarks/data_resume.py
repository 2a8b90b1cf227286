"""What does it cost to go on in the middle of an epoch? The time to the first batch from 90 % of it, against 1 %.

The floor is the first batch from the start. The peer is a torch DataLoader, which has no place to go on from and goes
through what was consumed.
"""

from __future__ import annotations

import argparse
import json

from _data import write_tabular
from _measure import Bar, Bench, Measure, Report, main, note, python


def measured(bench: Bench) -> Report:
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
    # Noise of the machine is what the bar leaves room for: a resume that read what was consumed would take 50 times.
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
    parser.add_argument("--times", type=int, default=5, help="resumes from each place in a round (default 5)")
    parser.add_argument("--peer-times", type=int, default=2, help="of the peer in a round (default 2)")
    parser.add_argument("--pause-s", type=float, default=0.7, help="between two of them (default 0.7)")


if __name__ == "__main__":
    main("resume", measured, repeats=2, add_arguments=add_arguments)
