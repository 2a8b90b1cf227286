"""A cluster with a real autoscaler of Ray, whose nodes are processes on this machine."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import uuid

import psutil
import pytest
from left_over import MARK, is_of

from processes import find_processes

HEAD_ID = "f" * 51 + "00000"
"""The provider of local nodes takes the node with this id for the head."""


def configuration(port):
    """Of an autoscaler that may bring one node with two CPUs. JSON is YAML."""
    lists = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    provider = {"type": "fake_multinode", "gcs_address": f"127.0.0.1:{port}", "use_node_id_as_ip": True}
    provider |= {"disable_node_updaters": True, "disable_launch_config_check": True}
    pair = {"resources": {"CPU": 2, "object_store_memory": 150_000_000}, "min_workers": 0, "max_workers": 1}
    head = {"resources": {"CPU": 1}, "max_workers": 0}
    config = {
        **{f"{name}_commands": [] for name in lists},
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
        "cluster_name": "growing",
        "max_workers": 1,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 10,
        "file_mounts_sync_continuously": False,
        "provider": provider,
        "head_node_type": "ray.head.default",
        "available_node_types": {"ray.head.default": {**head, "node_config": {}}, "pair": {**pair, "node_config": {}}},
    }
    return json.dumps(config)


@pytest.fixture
def growing(tmp_path, cluster):
    """The address of a cluster whose head has one CPU, and which grows."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = tmp_path / "autoscaler.yaml"
    path.write_text(configuration(port))
    name = uuid.uuid4().hex
    environ = {name: value for name, value in os.environ.items() if name != "PACELINE_TEST_SESSION"}
    environ |= {
        MARK: name,
        "RAY_FAKE_CLUSTER": "1",
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    nodes = type(cluster)(environ)
    try:
        nodes.add(num_cpus=1, include_dashboard=False, gcs_server_port=port, autoscaling_config=str(path))
        yield nodes.address
    finally:
        nodes.close()
        _end(name)


def _end(name):
    """The nodes that the autoscaler has brought are nobody's children."""
    nodes = find_processes(lambda process: is_of(process, name))
    for process in nodes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(nodes, timeout=10)


SCRIPT = """
import sys

import paceline
from paceline._engine.ray.connection import connect_to_cluster
from paceline._engine.ray.nodes import read_cluster
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig, get_context


def function():
    return get_context().get_local_world_size()


path, address = sys.argv[1:]
paceline.init(engine="ray", address=address)
connect_to_cluster(address)
print("grows:", read_cluster().can_grow, [node.total["CPU"] for node in read_cluster().nodes])
scaling = ScalingConfig(2, placement_strategy="STRICT_PACK")
result = DataParallelTrainer(function, scaling_config=scaling, run_config=RunConfig(storage_path=path)).fit()
print("trained beside:", result.return_value)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nodes_of_an_autoscaler_are_requested_and_the_wait_is_shown(tmp_path, growing):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "runs"), growing]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200)
    printed = ended.stdout + ended.stderr
    assert ended.returncode == 0, printed
    assert "grows: True [1.0]" in printed
    assert (
        "waiting for capacity: requested 2 workers with 1 CPU each (placement_strategy='STRICT_PACK'); "
        "the cluster has 1 node with 1 CPU; the autoscaler is adding nodes\n"
    ) in printed
    assert "trained beside: 2" in printed
