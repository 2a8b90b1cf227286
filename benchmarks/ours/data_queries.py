"""Group, filter and sort the rows of files. Arguments: directory, files of the table, times."""

import shutil
import sys

from _data import time_query, write_result

import paceline.data
from paceline.data.aggregate import Count, Mean, Sum

directory, table, times = sys.argv[1:]
paceline.data.DataContext.get_current().execution_options.resource_limits.cpu = 2


def group() -> float:
    groups = paceline.data.read_parquet(table).groupby("key").aggregate(Sum("x"), Mean("number"), Count()).take_all()
    return sum(row["sum(x)"] * row["mean(number)"] for row in groups)


def filter_and_sum() -> float:
    return float(paceline.data.read_parquet(table).filter(expr="number > 4").sum("x"))


def sort_and_write() -> float:
    target = f"{directory}/sorted"
    shutil.rmtree(target, ignore_errors=True)
    paceline.data.read_parquet(table).sort("x").write_parquet(target)
    return float(paceline.data.read_parquet(target).count())


queries = {"group-by": group, "filter and sum": filter_and_sum, "sort and write": sort_and_write}
write_result(directory, 0, {name: time_query(query, int(times)) for name, query in queries.items()})
