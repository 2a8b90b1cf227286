"""DuckDB with two threads. Arguments: directory, files of the left and the right table, epochs.

It runs in the interpreter of the benchmark, since it is a library without processes.
"""

import sys
from pathlib import Path

import duckdb

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _data import time_epoch, write_result

directory, left, right, epochs = sys.argv[1:]


def batches():
    with duckdb.connect(config={"threads": 2}) as connection:
        query = f"select * from '{left}/*.parquet' join '{right}/*.parquet' using (id)"
        for batch in connection.sql(query).to_arrow_reader(65_536):
            yield {name: values.to_numpy() for name, values in zip(batch.schema.names, batch.columns, strict=True)}


write_result(directory, 0, [time_epoch(batches()) for _ in range(int(epochs))])
