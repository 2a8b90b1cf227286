"""What does a join cost? An epoch of the rows of two tables that are joined by a key, to one consumer.

The peers are DuckDB with two threads, which joins in its own memory, and Ray Data's `join`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

from _data import write_join_tables
from _delivery import RAY, TIMEOUT_S, epoch_seconds
from _measure import Bench, Measure, Report, check, main, note, python, read_rank_results

DUCKDB = "DuckDB"
EPOCHS = 3
"""The first also starts processes and fills caches, so the best of the others counts."""


def measure(bench: Bench) -> Report:
    options = bench.options
    left, right = bench.storage / "left", bench.storage / "right"
    write_join_tables(left, right, options.rows, options.files)
    took: dict[str, list[float]] = defaultdict(list)
    sums: list[float] = []
    for number in bench.rounds():
        contestants = {"ours": python("ours/data_join.py"), DUCKDB: python("peers/duckdb_join.py")}
        if bench.takes_part("ray", number):
            contestants[RAY] = bench.peer("ray", "peers/ray_join.py")
        for name, command in contestants.items():
            directory = bench.directory(name.replace(" ", "-"))
            bench.run([*command, *map(str, (directory, left, right, EPOCHS))], directory, timeout_s=TIMEOUT_S)
            [epochs] = read_rank_results(directory, size=1)
            for epoch in epochs:
                check(epoch["rows"] == options.rows, f"{name}: {epoch['rows']} of {options.rows} rows arrived")
                sums.append(epoch["sum"])
                right_sum = abs(sums[-1] - sums[0]) <= 1e-3 * sums[0]
                check(right_sum, f"{name} delivered other rows: their sum is {sums[-1]}, not {sums[0]}")
            took[name].append(min(epoch_seconds([epoch]) for epoch in epochs[1:]))
    ours = took.pop("ours")
    rate = [options.rows / seconds for seconds in ours]
    return Report([Measure("join", "s", ours, {name: took[name]}) for name in took], {"rows": note(rate, "/s")})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=4_000_000, help="of the left table (default 4,000,000)")
    parser.add_argument("--files", type=int, default=16)


if __name__ == "__main__":
    main("join", measure, peers=("ray",), repeats=3, peer_repeats=1, add_arguments=add_arguments)
