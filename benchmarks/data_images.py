"""How many pictures a second do two workers get?

JPEGs of 256x256 in Parquet files, decoded and resized to 224x224 float32, in batches of 64 as torch tensors. Against
two processes that read and prepare for themselves, and against two with a torch DataLoader of one worker process each.
"""

from __future__ import annotations

import argparse

from _data import write_pictures
from _delivery import Delivered
from _measure import Bar, Bench, Measure, Report, main


def measured(bench: Bench) -> Report:
    options = bench.options
    files = bench.storage / "pictures"
    write_pictures(files, options.rows, options.files)
    delivered = Delivered(bench, "images", files, options.rows)
    delivered.take_turns()
    peers = delivered.peers("plain", "DataLoader", "Ray")
    measure = Measure("images", "/s", delivered.rates["ours"], peers, Bar(">=", 0.95, ratio=True))
    return Report([measure], delivered.notes())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=4_000, help="pictures in all files together (default 4,000)")
    parser.add_argument("--files", type=int, default=16)


if __name__ == "__main__":
    main("pictures", measured, repeats=2, add_arguments=add_arguments)
