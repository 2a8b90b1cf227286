"""Times the same pipelines with our datasets and with Ray Data, in turns, on one Ray cluster.

Arguments: a directory, rounds of ours, of Ray Data, the files of the table, the files of a smaller one to join.
"""
# ruff: noqa: I001

import json
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import ray
import ray.data
import ray.data.aggregate

import paceline.data
import paceline.data.aggregate
from _cluster import cluster

directory, table, small = Path(sys.argv[1]), *sys.argv[4:]
rounds, peer_rounds = map(int, sys.argv[2:4])


def scale(batch):
    return {"y": batch["x"] * 2 + batch["number"], "key": batch["key"]}


def count_iterated(rows):
    return float(sum(len(batch["key"]) for batch in rows.iter_batches(batch_size=4096)))


def iterate(data):
    rows = data.read_parquet(table).map_batches(scale)
    return float(sum(batch["y"].sum() for batch in rows.iter_batches(batch_size=4096)))


def filter_and_sum(data):
    return float(data.read_parquet(table).filter(expr="number > 4").sum("x"))


def group(data):
    sums = data.aggregate.Sum("x"), data.aggregate.Mean("number"), data.aggregate.Count()
    groups = data.read_parquet(table).groupby("key").aggregate(*sums).take_all()
    return float(sum(row["sum(x)"] * row["mean(number)"] for row in groups))


def sort_and_write(data):
    shutil.rmtree(directory / "sorted", ignore_errors=True)
    data.read_parquet(table).sort("x").write_parquet(str(directory / "sorted"))
    return float(paceline.data.read_parquet(str(directory / "sorted")).count())


def shuffle(data):
    return count_iterated(data.read_parquet(table).random_shuffle(seed=1))


def join(data):
    return count_iterated(data.read_parquet(table).join(data.read_parquet(small), "inner", 2, on=("key",)))


def wait_for_idle_cluster():
    """Until no CPU is taken any more by what ran before."""
    while ray.available_resources().get("CPU", 0) < 2:
        time.sleep(0.05)


PIPELINES = {
    "map and iterate": iterate,
    "filter and sum": filter_and_sum,
    "sort and write": sort_and_write,
    "random_shuffle": shuffle,
    "join": join,
    "group-by": group,
}
DATASETS = {"ours": paceline.data, "ray": ray.data}
results = {name: {who: [] for who in DATASETS} for name in PIPELINES}
with cluster(num_cpus=2, store_bytes=800_000_000):
    ray.data.DataContext.get_current().enable_progress_bars = False
    # The first round starts processes and fills caches.
    for number in range(-1, max(rounds, peer_rounds)):
        # Ray Data's joins and groups end with their actors; what follows would have to start new processes.
        iterate(paceline.data)
        for name, pipeline in PIPELINES.items():
            answers = []
            for who, data in DATASETS.items():
                if number < (rounds if who == "ours" else peer_rounds) and (
                    number >= 0 or who == "ours" or peer_rounds
                ):
                    wait_for_idle_cluster()
                    began = time.perf_counter()
                    answers.append(pipeline(data))
                    took = time.perf_counter() - began
                    if number >= 0:
                        results[name][who].append(took)
            assert np.allclose(answers, answers[0]), f"{name}: {answers}"
Path(directory, "result.json").write_text(json.dumps(results))
