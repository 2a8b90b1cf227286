"""Are datasets on a Ray cluster as fast as Ray Data there?

Six pipelines over the rows of files, and two epochs for two workers: a trainer's, and those of Ray Data's
`streaming_split`. Ours and Ray Data's in turns, on one local Ray cluster of two CPUs. Ours has a fixed order of rows.
"""

from __future__ import annotations

import argparse

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _cluster import run_session
from _data import write_query_table
from _measure import Bar, Bench, Measure, Report, check, main

NAMES = (  # of the pipelines in both/cluster_data.py
    "map and iterate",
    "filter and sum",
    "sort and write",
    "random_shuffle",
    "join",
    "group-by",
    "split for 2 workers",
)


def measure(bench: Bench) -> Report:
    options = bench.options
    table, small = bench.storage / "table", bench.storage / "small"
    write_query_table(table, options.rows, options.files)
    small.mkdir()
    pq.write_table(pa.table({"key": np.arange(1000), "z": np.random.default_rng(0).random(1000)}), small / "0.parquet")
    bench.log(f"{bench.repeats} rounds in one session")
    check(options.rows % 2 == 0, f"--rows must be even, so that two workers get all of them, got {options.rows}")
    timeout_s = 600 + 120 * bench.repeats
    results = run_session(bench, "both/cluster_data.py", table, small, *options.pipelines, timeout_s=timeout_s)
    return Report(
        [
            Measure(
                f"{name}, on Ray",
                "s",
                took["ours"],
                {"Ray Data": took["ray"]} if took["ray"] else {},
                Bar("<=", 1.0, ratio=True) if took["ray"] else None,
            )
            for name, took in results.items()
        ],
        {"rows": f"{options.rows:,}"},
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=1_000_000, help="(default 1,000,000)")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--pipelines", nargs="+", choices=NAMES, default=NAMES, help="run only these")


if __name__ == "__main__":
    main("cluster data", measure, repeats=2, add_arguments=add_arguments)
