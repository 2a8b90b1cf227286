"""How many rows of numbers a second do two workers get?

32 columns of float32 in Parquet files, stacked and scaled, in batches of 1,024 as torch tensors. Against two processes
that read and prepare with pyarrow for themselves, and against two with a torch DataLoader of one worker process each.
"""

from __future__ import annotations

import argparse

from _data import write_tabular
from _delivery import Delivered
from _measure import Bar, Bench, Measure, Report, main


def measured(bench: Bench) -> Report:
    options = bench.options
    files = bench.storage / "rows"
    write_tabular(files, options.rows, options.files, 62_500)
    delivered = Delivered(bench, "tabular", files, options.rows)
    delivered.take_turns()
    ours = delivered.rates["ours"]
    return Report(
        [
            Measure("tabular", "/s", ours, delivered.peers("plain", "Ray"), Bar(">=", 0.9, ratio=True)),
            Measure("tabular", "/s", ours, delivered.peers("DataLoader"), Bar(">=", 3, ratio=True)),
        ],
        delivered.notes(),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=2_000_000, help="in all files together (default 2,000,000)")
    parser.add_argument("--files", type=int, default=32)


if __name__ == "__main__":
    main("tabular rows", measured, repeats=3, add_arguments=add_arguments)
