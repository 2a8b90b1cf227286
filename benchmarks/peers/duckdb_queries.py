"""DuckDB with two threads. Arguments: directory, files of the table, times.

It runs in the interpreter of the benchmark, since it is a library without processes.
"""

import sys
from pathlib import Path

import duckdb

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _data import time_query, write_result

directory, table, times = sys.argv[1:]
connection = duckdb.connect(config={"threads": 2})
files = f"'{table}/*.parquet'"


def group() -> float:
    query = f"select key, sum(x), avg(number), count(*) from {files} group by key order by key"
    return sum(row[1] * row[2] for row in connection.sql(query).fetchall())


def filter_and_sum() -> float:
    [row] = connection.sql(f"select sum(x) from {files} where number > 4").fetchall()
    return row[0]


def sort_and_write() -> float:
    target = f"{directory}/sorted.parquet"
    connection.sql(f"copy (select * from {files} order by x) to '{target}' (format parquet)")
    [row] = connection.sql(f"select count(*) from '{target}'").fetchall()
    return float(row[0])


queries = {"group-by": group, "filter and sum": filter_and_sum, "sort and write": sort_and_write}
write_result(directory, 0, {name: time_query(query, int(times)) for name, query in queries.items()})
