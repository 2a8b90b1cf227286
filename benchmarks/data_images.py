"""How many images a second do two workers receive?

JPEGs of 256x256 in Parquet files, decoded and resized to 224x224 float32, in batches of 64 as torch tensors. The floor
is two processes that read and prepare their own data; the peers are two with a torch DataLoader of one worker process
each, and Ray Train with Ray Data.
"""

from __future__ import annotations

import argparse

from _data import write_images
from _delivery import LOADER, PLAIN, RAY, DeliveryRates
from _measure import Bar, Bench, Measure, Report, main


def measure(bench: Bench) -> Report:
    options = bench.options
    files = bench.storage / "pictures"
    write_images(files, options.rows, options.files)
    delivery = DeliveryRates(bench, "images", files, options.rows)
    delivery.take_turns()
    ours, floor = delivery.rates["ours"], delivery.peers(PLAIN)
    return Report(
        [
            Measure("pictures", "/s", ours, floor, Bar(">=", 0.95, ratio=True), floor),
            Measure("pictures", "/s", ours, delivery.peers(LOADER, RAY), None, floor),
        ],
        delivery.notes(),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=2_400, help="images in all files together (default 2,400)")
    parser.add_argument("--files", type=int, default=16)


if __name__ == "__main__":
    main("pictures", measure, peers=("ray",), repeats=2, peer_repeats=1, add_arguments=add_arguments)
