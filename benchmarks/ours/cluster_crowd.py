"""Measures the processor time of a driver whose workers on a cluster of several local nodes report at some rate.

Arguments: a directory, rounds, ignored, nodes, workers on each, seconds of each round, reports a second of all workers.
"""
# ruff: noqa: I001

import json
import sys
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from paceline import train
from paceline._engine.ray.agent_event_loop import AgentEventLoop
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig
from _cluster import make_directory

MARGIN_S = 1.0
"""Left out at both ends of the reports."""


def function(config):
    context = train.get_context()
    train.collective.barrier()
    began = time.time()
    if context.get_world_rank() == 0:
        Path(config["directory"], "began").write_text(str(began))
    # The workers of a real group report at about the same time; these do not, which costs more.
    phase = (context.get_world_rank() * 0.618) % 1.0
    for number in range(int(config["rate"] * config["seconds"])):
        time.sleep(max(0.0, began + (number + phase) / config["rate"] - time.time()))
        train.report({"step": number, "loss": 0.25, "accuracy": 0.75, "rate": 1e-3})
    time.sleep(max(0.0, began + config["seconds"] - time.time()))


def measure_driver(path, size, rate, seconds):
    make_directory(path)
    marks = {}

    def watch():
        while not (path / "began").exists():
            time.sleep(0.05)
        time.sleep(MARGIN_S)
        for name, after_s in (("first", 0.0), ("last", seconds - 2 * MARGIN_S)):
            time.sleep(after_s)
            marks[name] = time.monotonic(), time.process_time(), num_items

    watching = threading.Thread(target=watch)
    watching.start()
    config = {"directory": str(path), "rate": rate, "seconds": seconds}
    scaling = ScalingConfig(size, resources_per_worker={"CPU": 1})
    run = RunConfig(name="run", storage_path=path, verbose=0)
    result = DataParallelTrainer(function, train_loop_config=config, scaling_config=scaling, run_config=run).fit()
    watching.join()
    num_reports = len(result.metrics_dataframe) if rate else 0
    assert num_reports == int(rate * seconds), f"{num_reports} reports of each worker arrived"
    (began, cpu, items), (ended, cpu_then, items_then) = marks["first"], marks["last"]
    return (cpu_then - cpu) / (ended - began), (items_then - items) / (ended - began)


def count_items(self, agent, data):
    global num_items
    num_items += 1
    handle_output(self, agent, data)


num_items = 0
handle_output, AgentEventLoop._handle_output = AgentEventLoop._handle_output, count_items
directory, rounds, _, num_nodes, num_beside = Path(sys.argv[1]), *map(int, sys.argv[2:6])
seconds, num_reports = float(sys.argv[6]), int(sys.argv[7])
size = num_nodes * num_beside
results = {"fast": [], "slow": [], "silent": [], "items_per_s": []}

cluster = Cluster()
try:
    for _ in range(num_nodes):
        cluster.add_node(num_cpus=num_beside, object_store_memory=100_000_000, include_dashboard=False)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    for number in range(rounds):
        for name, rate in (("fast", num_reports / size), ("slow", 1.0), ("silent", 0.0)):
            cores, items = measure_driver(directory / f"{name}-{number}", size, rate, seconds)
            results[name].append(cores)
            if name == "fast":
                results["items_per_s"].append(items)
            print(f"{name}: {cores:.3f} cores, {items:.0f} items a second", file=sys.stderr, flush=True)
finally:
    ray.shutdown()
    cluster.shutdown()
Path(directory, "result.json").write_text(json.dumps({"ours": results, "ray": []}))
