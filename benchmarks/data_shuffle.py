"""What does a full shuffle cost? An epoch of the tabular rows in a random order.

The floor is an epoch in the order of files, in the same run and in turns with it. The peer is Ray Data's
`random_shuffle`, with the same number of rows in another order.
"""

from __future__ import annotations

import argparse

from _data import write_tabular
from _delivery import RAY, TIMEOUT_S, DeliveryRates, epoch_seconds
from _measure import Bar, Bench, Measure, Report, main, note, python, read_rank_results

EPOCHS = 3


def measure(bench: Bench) -> Report:
    options = bench.options
    files = bench.storage / "rows"
    write_tabular(files, options.rows, options.files, 62_500)
    delivery = DeliveryRates(bench, "tabular", files, options.rows)
    plain: list[float] = []
    shuffled: list[float] = []
    ray: list[float] = []
    for number in bench.rounds():
        directory = bench.directory("ours")
        command = python("ours/data.py", directory, "tabular", files, EPOCHS, 1)
        bench.run(command, directory, {"OMP_NUM_THREADS": "1"}, timeout_s=TIMEOUT_S)
        took = [epoch_seconds(ranks) for ranks in delivery.check_epochs("ours", read_rank_results(directory))]
        # The first of each also starts processes and fills caches.
        plain.append(min(took[2::2]))
        shuffled.append(min(took[3::2]))
        if bench.takes_part("ray", number):
            directory = bench.directory("ray")
            command = bench.peer("ray", "peers/ray_data.py", directory, "tabular", files, EPOCHS, 1)
            bench.run(command, directory, {"OMP_NUM_THREADS": "1"}, timeout_s=TIMEOUT_S)
            ray.append(
                min(epoch_seconds(ranks) for ranks in delivery.check_epochs(RAY, read_rank_results(directory))[1:])
            )
    rate = [options.rows / seconds for seconds in shuffled]
    return Report(
        [
            Measure(
                "shuffled epoch", "s", shuffled, {"in order": plain}, Bar("<=", 1.6, ratio=True), {"in order": plain}
            ),
            *([Measure("shuffled epoch", "s", shuffled, {RAY: ray}, None, {"in order": plain})] if ray else []),
        ],
        {"rows": note(rate, "/s")},
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=2_000_000, help="in all files together (default 2,000,000)")
    parser.add_argument("--files", type=int, default=32)


if __name__ == "__main__":
    main("shuffle", measure, peers=("ray",), repeats=3, peer_repeats=1, add_arguments=add_arguments)
