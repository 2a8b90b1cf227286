"""How many pictures a second do two workers get?

JPEGs of 256x256 in Parquet files, decoded and resized to 224x224 float32, in batches of 64 as torch tensors. The floor
is two processes that read and prepare for themselves; the peers are two with a torch DataLoader of one worker process
each, and Ray Train with Ray Data.
"""

from __future__ import annotations

import argparse

from _data import write_pictures
from _delivery import LOADER, PLAIN, RAY, Delivered
from _measure import Bar, Bench, Measure, Report, main


def measured(bench: Bench) -> Report:
    options = bench.options
    files = bench.storage / "pictures"
    write_pictures(files, options.rows, options.files)
    delivered = Delivered(bench, "images", files, options.rows)
    delivered.take_turns()
    ours, floor = delivered.rates["ours"], delivered.peers(PLAIN)
    return Report(
        [
            Measure("pictures", "/s", ours, floor, Bar(">=", 0.95, ratio=True), floor),
            Measure("pictures", "/s", ours, delivered.peers(LOADER, RAY), None, floor),
        ],
        delivered.notes(),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=2_400, help="pictures in all files together (default 2,400)")
    parser.add_argument("--files", type=int, default=16)


if __name__ == "__main__":
    main("pictures", measured, peers=("ray",), repeats=2, peer_repeats=1, add_arguments=add_arguments)
