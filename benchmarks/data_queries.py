"""What do queries over files cost? A group-by, a filtered sum, and a sort that is written, beside DuckDB.

DuckDB has two threads, and is a database; ours resumes, and its rows have a fixed order.
"""

from __future__ import annotations

import argparse

from _data import write_query_table
from _delivery import TIMEOUT_S
from _measure import Bench, Measure, Report, check, main, python, read_rank_results

DUCKDB = "DuckDB"
QUERIES = ("group-by", "filter and sum", "sort and write")
TIMES = 3
"""The first also starts processes and fills caches, so the best of the others counts."""


def measure(bench: Bench) -> Report:
    options = bench.options
    table = bench.storage / "table"
    write_query_table(table, options.rows, options.files)
    took: dict[str, dict[str, list[float]]] = {query: {"ours": [], DUCKDB: []} for query in QUERIES}
    answers: dict[str, float] = {}
    for _ in bench.rounds():
        for name, command in (("ours", python("ours/data_queries.py")), (DUCKDB, python("peers/duckdb_queries.py"))):
            directory = bench.directory(name)
            bench.run([*command, *map(str, (directory, table, TIMES))], directory, timeout_s=TIMEOUT_S)
            [results] = read_rank_results(directory, size=1)
            for query in QUERIES:
                took[query][name].append(min(results[query]["seconds"][1:]))
                answer = answers.setdefault(query, results[query]["answer"])
                right = abs(results[query]["answer"] - answer) <= 1e-6 * abs(answer)
                check(right, f"{name}: the answer of {query} is {results[query]['answer']}, not {answer}")
    return Report([Measure(query, "s", took[query].pop("ours"), took[query]) for query in QUERIES], {})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=8_000_000, help="(default 8,000,000)")
    parser.add_argument("--files", type=int, default=16)


if __name__ == "__main__":
    main("queries", measure, peers=(), repeats=3, peer_repeats=1, add_arguments=add_arguments)
