"""What the tests on a Ray cluster stand on: one cluster for all of them, and nothing of ours left on it after each.

Ray is initialised in this process for as long as these tests run, and by that alone runs are on it.
"""

import contextlib
import functools
import json
import logging
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from left_over import MARK, assert_nothing_is_left

from paceline._engine.ray.idle_agents import idle_agents
from processes import wait_until

HERE = Path(__file__).parent
sys.path += [str(HERE.parent / "chaos"), str(HERE.parent / "contracts")]  # programs that run on every engine
NODE = {"num_cpus": 2, "object_store_memory": 150_000_000}
NUM_NODES = 2


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.ray)


@pytest.fixture(autouse=True)
def without_debug_records():
    """pytest keeps every log record, and those of Ray Data with a traceback keep its objects in memory."""
    logging.disable(logging.DEBUG)
    yield
    logging.disable(logging.NOTSET)


class Nodes:
    """The cluster: `address`, and nodes that come and go."""

    def __init__(self, environ):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([sys.executable, str(HERE / "nodes.py")], **pipes, env=environ, text=True)
        process.wait()  # what serves is a fork of it
        assert process.stdin is not None
        assert process.stdout is not None
        self._requests, self._answers = process.stdin, process.stdout
        self.address = ""
        self.name = environ[MARK]
        self.added = []
        self.plain = set()
        """Those that are like the first ones."""

    def add(self, **node):
        """Another node; its id."""
        answer = self._ask({"do": "add", "node": {**NODE, **node}})
        self.address = answer["address"]
        self.added.append(answer["node"])
        if not node:
            self.plain.add(answer["node"])
        return answer["node"]

    def remove(self, node):
        """At once, as when its machine is lost."""
        self.added.remove(node)
        self._ask({"do": "remove", "node": node})

    @contextlib.contextmanager
    def blind_to(self, path):
        """One more node, with the resource `blind`, that finds an empty directory in the place of this one."""
        import ray

        def are_there():
            return any(node["Alive"] and "blind" in node["Resources"] for node in ray.nodes())

        self._ask({"do": "add", "node": {**NODE, "resources": {"blind": 2}}, "blind_to": str(path)})
        wait_until(are_there)
        yield
        self._ask({"do": "see"})
        wait_until(lambda: not are_there())

    def close(self):
        self._requests.close()
        self._answers.read()  # until it has ended
        self._answers.close()

    def _ask(self, request):
        print(json.dumps(request), file=self._requests, flush=True)
        return json.loads(self._answers.readline())


@pytest.fixture(scope="package")
def nodes():
    nodes = Nodes(_environ())
    nodes.add(include_dashboard=False)
    for _ in range(NUM_NODES - 1):
        nodes.add()
    yield nodes
    nodes.close()


@pytest.fixture
def make_cluster(nodes):
    """Starts another cluster, of one node, with more variables in the environment of its processes."""
    with contextlib.ExitStack() as clusters:

        def make(**variables):
            lone = Nodes(_environ() | variables)
            clusters.callback(lone.close)
            lone.add(include_dashboard=False)
            return lone

        yield make


@pytest.fixture
def lone_cluster(make_cluster):
    """Another cluster, to be lost."""
    return make_cluster()


def _environ():
    """Of the processes of a cluster."""
    environ = {name: value for name, value in os.environ.items() if name != "PACELINE_TEST_SESSION"}
    # Without these a node that is gone is noticed after half a minute, and idle processes linger.
    return environ | {
        MARK: uuid.uuid4().hex,
        "RAY_health_check_initial_delay_ms": "0",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "120",
    }


@pytest.fixture(scope="package")
def connected(nodes):
    """The cluster, with Ray initialised in this process."""
    import ray

    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    yield nodes
    ray.shutdown()


@pytest.fixture(scope="module")
def hidden(connected, tmp_path_factory):
    """A directory that one more node, which has the resource `blind`, does not see."""
    possible = subprocess.run(["unshare", "-m", "true"], stderr=subprocess.DEVNULL).returncode == 0
    if not possible:
        pytest.skip("a node that sees other files than this process needs the right to make a mount namespace")
    path = tmp_path_factory.mktemp("hidden")
    with connected.blind_to(path):
        yield path


@pytest.fixture(autouse=True)
def cluster(connected, nothing_is_left_behind):
    """The cluster; a test that leaves an actor, a placement group, a process or a node of ours there fails."""
    import ray

    before = list(connected.added)
    yield connected
    for agent in idle_agents.take_all():
        ray.kill(agent.actor)
    try:
        assert_nothing_is_left(connected.name)
    finally:
        for node in set(connected.added) - set(before):
            # One that has taken the place of a lost one may stay.
            if node not in connected.plain or len(connected.added) > NUM_NODES:
                connected.remove(node)
        while len(connected.added) < NUM_NODES:
            connected.add()


@pytest.fixture(scope="package")
def undisturbed(tmp_path_factory):
    """What a function of `oracle` comes to on this machine when nothing happens, computed once for each."""
    import cloudpickle
    import oracle

    @functools.cache
    def get(kind, function, steps=oracle.STEPS):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PACELINE_ENGINE", "local")
            result = oracle.trainer_of(kind, function, tmp_path_factory.mktemp("undisturbed"), steps).fit()
        return oracle.expected(result, steps)

    cloudpickle.register_pickle_by_value(oracle)  # workers cannot import the modules of a test
    yield get
    cloudpickle.unregister_pickle_by_value(oracle)


@pytest.fixture
def fit(tmp_path):
    """Fits a function; `run` is more of its `RunConfig`, and `more` of the trainer's arguments."""
    from paceline.train import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

    def fit(function, num_workers=1, *, strategy="PACK", resources=None, config=None, max_failures=0, more=None, **run):
        run = {"name": "run", "storage_path": tmp_path, "failure_config": FailureConfig(max_failures), **run}
        scaling = ScalingConfig(num_workers, placement_strategy=strategy, resources_per_worker=resources)
        more = {"scaling_config": scaling, "run_config": RunConfig(**run), **(more or {})}
        return DataParallelTrainer(function, train_loop_config=config, **more).fit()

    return fit


@pytest.fixture
def fit_with(tmp_path, undisturbed):
    """Runs with faults, sees that they struck and changed nothing, and returns the path of the run."""
    import oracle

    from paceline.train import DataParallelTrainer

    def fit(faults, kind=DataParallelTrainer, function=oracle.small, *, unfired=False, **options):
        result = faults.applied_to(oracle.trainer_of(kind, function, tmp_path, **options)).fit()
        assert unfired or faults.unfired(result.path) == []
        oracle.assert_same(result.path, undisturbed(kind, function, options.get("steps", oracle.STEPS)))
        return result.path

    return fit
