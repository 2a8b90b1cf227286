"""Trains on two nodes of a local Ray cluster, saves every step, kills a node and continues on a third one.

Arguments: a directory, rounds, ignored. The results are the seconds from the moment when Ray lists the node as dead to
the next report of the restored group, and those from the kill to that moment.
"""
# ruff: noqa: I001

import json
import os
import sys
import threading
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from paceline import train
from paceline.train import FailureConfig, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer
from _cluster import make_directory

LOST_AT, LAST = 3, 4
TIMEOUT_S = 120.0
NODE = {"num_cpus": 1, "object_store_memory": 100_000_000, "include_dashboard": False}


def function(config):
    import torch

    directory, context = Path(config["directory"]), train.get_context()
    rank, checkpoint = context.get_world_rank(), train.get_checkpoint()
    began_from = step = checkpoint.to_dict()["step"] if checkpoint else 0
    while step < LAST:
        step += 1
        torch.distributed.all_reduce(torch.ones(1000))
        train.report({"step": step}, checkpoint=train.Checkpoint.from_dict({"step": step}))
        if began_from:
            at = {"at": time.time(), "from": began_from}
            write(directory / f"restored_{rank}.json", at)
            return
        if step == LOST_AT:
            write(directory / f"ready_{rank}.json", {"parents": list_parents(os.getpid())})
            threading.Event().wait()


def write(path, content):
    path.with_suffix(".part").write_text(json.dumps(content))
    path.with_suffix(".part").rename(path)


def list_parents(pid):
    """The process ids from this one's parent up to the first process."""
    parents = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        parents.append(pid)
    return parents


def wait_for(condition):
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "the run did not get there in time"
        time.sleep(0.01)
    return found


def kill_node(cluster, path, victim, times):
    """Kill the node on which a rank waits, put another in its place, and note when Ray lists it as dead."""
    ready = [path / f"ready_{rank}.json" for rank in range(2)]
    wait_for(lambda: all(each.exists() for each in ready))
    parents = json.loads(ready[victim].read_text())["parents"]
    node = next(node for node in nodes if node.all_processes["raylet"][0].process.pid in parents)
    nodes.remove(node)
    times["killed"] = time.time()
    killing = threading.Thread(target=cluster.remove_node, args=(node,), kwargs={"allow_graceful": False})
    killing.start()
    wait_for(lambda: any(each["NodeID"] == node.node_id and not each["Alive"] for each in ray.nodes()))
    times["noticed"] = time.time()
    killing.join()


def measure_recovery(cluster, path, victim):
    make_directory(path)
    times = {}
    killing = threading.Thread(target=kill_node, args=(cluster, path, victim, times))
    killing.start()
    TorchTrainer(
        function,
        train_loop_config={"directory": str(path)},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(
            name="run", storage_path=str(path), verbose=0, failure_config=FailureConfig(max_failures=1)
        ),
    ).fit()
    killing.join()
    restored = [json.loads((path / f"restored_{rank}.json").read_text()) for rank in range(2)]
    assert [one["from"] for one in restored] == [LOST_AT, LOST_AT], f"the ranks resumed from other steps: {restored}"
    return max(one["at"] for one in restored) - times["noticed"], times["noticed"] - times["killed"]


directory, rounds = Path(sys.argv[1]), int(sys.argv[2])
results = {"ours": [], "ray": [], "noticed": []}
cluster = Cluster()
try:
    cluster.add_node(**NODE | {"num_cpus": 0})
    nodes = [cluster.add_node(**NODE) for _ in range(3)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    for number in range(rounds):
        recovered_s, noticed_s = measure_recovery(cluster, directory / f"ours-{number}", number % 2)
        results["ours"].append(recovered_s)
        results["noticed"].append(noticed_s)
        print(f"noticed after {noticed_s:.2f} s, next report {recovered_s:.2f} s later", file=sys.stderr, flush=True)
        nodes.append(cluster.add_node(**NODE))
finally:
    ray.shutdown()
    cluster.shutdown()
Path(directory, "result.json").write_text(json.dumps(results))
