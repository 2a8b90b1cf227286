"""How many rows of numbers a second do two workers receive?

32 columns of float32 in Parquet files, stacked and scaled, in batches of 1,024 as torch tensors. The floor is two
processes that read and prepare their own data with pyarrow; the peers are two with a torch DataLoader of one worker
process each, and Ray Train with Ray Data.
"""

from __future__ import annotations

import argparse

from _data import write_tabular
from _delivery import LOADER, PLAIN, RAY, DeliveryRates
from _measure import Bar, Bench, Measure, Report, main


def measure(bench: Bench) -> Report:
    options = bench.options
    files = bench.storage / "rows"
    write_tabular(files, options.rows, options.files, 62_500)
    delivery = DeliveryRates(bench, "tabular", files, options.rows)
    delivery.take_turns()
    ours, floor = delivery.rates["ours"], delivery.peers(PLAIN)
    return Report(
        [
            Measure("tabular rows", "/s", ours, floor, Bar(">=", 1, ratio=True), floor),
            Measure("tabular rows", "/s", ours, delivery.peers(LOADER, RAY), Bar(">=", 3, ratio=True), floor),
        ],
        delivery.notes(),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=2_000_000, help="in all files together (default 2,000,000)")
    parser.add_argument("--files", type=int, default=32)


if __name__ == "__main__":
    main("tabular rows", measure, peers=("ray",), repeats=2, peer_repeats=1, add_arguments=add_arguments)
