"""Times the same pipelines with our datasets and with Ray Data, in turns, on one Ray cluster.

Arguments: a directory, rounds of ours, of Ray Data, the files of the table, the files of a smaller one to join, and
the names of the pipelines.
"""
# ruff: noqa: I001

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import ray
import ray.data
import ray.data.aggregate

import paceline.data
import paceline.data.aggregate
from paceline import train
from _cluster import cluster

directory, table, small, names = Path(sys.argv[1]), *sys.argv[4:6], sys.argv[6:]
NUM_CPUS = 2
"""For reading and transforming. The workers of `split` take none of them, neither ours nor Ray Data's."""
EPOCHS = 2
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


def read_share(rows, epochs):
    """When each epoch began and ended in this worker, the number of its rows, and their sum."""
    spans, num_rows, total = [], 0, 0.0
    for _ in range(epochs):
        began = time.time()
        for batch in rows.iter_batches(batch_size=1024):
            num_rows += len(batch["y"])
            total += float(batch["y"].sum())
        spans.append((began, time.time()))
    return spans, num_rows, total


def train_function(config):
    answer = read_share(train.get_dataset_shard("train"), config["epochs"])
    Path(config["path"], f"rank_{train.get_context().get_world_rank()}.json").write_text(json.dumps(answer))


def split_ours(rows):
    path = Path(tempfile.mkdtemp(dir=directory))
    trainer = train.DataParallelTrainer(
        train_function,
        train_loop_config={"path": str(path), "epochs": EPOCHS},
        scaling_config=train.ScalingConfig(2, resources_per_worker={"CPU": 0}),
        run_config=train.RunConfig(name="run", storage_path=str(path)),
        datasets={"train": rows},
    )
    trainer.fit()
    return [json.loads((path / f"rank_{rank}.json").read_text()) for rank in range(2)]


def split_rays(rows):
    consume = ray.remote(num_cpus=0)(read_share)
    return ray.get([consume.remote(share, EPOCHS) for share in rows.streaming_split(2, equal=True)])


def split(data):
    """What both workers received, and how long they took once they had started."""
    rows = data.read_parquet(table).map_batches(scale)
    shares = split_ours(rows) if data is paceline.data else split_rays(rows)
    spans = list(zip(*(spans for spans, _, _ in shares), strict=True))
    took = sum(max(end for _, end in epoch) - min(began for began, _ in epoch) for epoch in spans)
    return [sum(num_rows for _, num_rows, _ in shares), sum(total for *_, total in shares)], took


def run(pipeline, data):
    began = time.perf_counter()
    answer = pipeline(data)
    return answer if pipeline is split else (answer, time.perf_counter() - began)


def wait_for_idle_cluster():
    """Until no CPU is taken any more by what ran before."""
    while ray.available_resources().get("CPU", 0) < NUM_CPUS:
        time.sleep(0.05)


PIPELINES = {
    "map and iterate": iterate,
    "filter and sum": filter_and_sum,
    "sort and write": sort_and_write,
    "random_shuffle": shuffle,
    "join": join,
    "group-by": group,
    "split for 2 workers": split,
}
DATASETS = {"ours": paceline.data, "ray": ray.data}
results = {name: {who: [] for who in DATASETS} for name in names}
with cluster(num_cpus=NUM_CPUS, store_bytes=800_000_000):
    ray.data.DataContext.get_current().enable_progress_bars = False
    # The first round starts processes and fills caches.
    for number in range(-1, max(rounds, peer_rounds)):
        # Ray Data's joins and groups end with their actors; what follows would have to start new processes.
        iterate(paceline.data)
        for name in names:
            answers = []
            for who, data in DATASETS.items():
                if number < (rounds if who == "ours" else peer_rounds) and (
                    number >= 0 or who == "ours" or peer_rounds
                ):
                    wait_for_idle_cluster()
                    answer, took = run(PIPELINES[name], data)
                    answers.append(answer)
                    if number >= 0:
                        results[name][who].append(took)
            assert np.allclose(answers, answers[0]), f"{name}: {answers}"
Path(directory, "result.json").write_text(json.dumps(results))
