"""What is shipped to the nodes: modules, directories, variables; and Ray in the user's function."""

import importlib
import json
import os
import platform
import signal
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
import ray

import paceline
from paceline import train
from paceline.train import TrainingFailedError
from processes import wait_until

pytestmark = pytest.mark.slow

BLIND = {"CPU": 1, "blind": 1}
SEEING = {"CPU": 1, "node:__internal_head__": 0.001}


@pytest.fixture
def project(hidden, tmp_path, monkeypatch):
    """A project of the user's, which the blind node does not have; this process is in it, and has it on its path."""
    path = hidden / tmp_path.name
    (path / "own_package").mkdir(parents=True)
    (path / "own_package" / "__init__.py").write_text("")
    (path / "own_package" / "later.py").write_text("VALUE = 'imported later'")
    (path / "own_package" / "labels.txt").write_text("cat dog")
    (path / "own_loop.py").write_text(
        textwrap.dedent(
            """
            import importlib, json, os, sys
            from pathlib import Path
            import own_package

            ANSWER = 1

            def loop(config):
                from paceline import train
                from own_package.later import VALUE
                facts = {
                    "answer": ANSWER,
                    "later": VALUE,
                    "labels": Path(own_package.__file__).with_name("labels.txt").read_text(),
                    "file": __file__,
                    "argv": sys.argv,
                    "cwd": os.getcwd(),
                }
                rank = train.get_context().get_world_rank()
                Path(config["path"], f"rank_{rank}.json").write_text(json.dumps(facts))
            """
        )
    )
    monkeypatch.chdir(path)
    monkeypatch.syspath_prepend(str(path))
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr=1"])
    yield path
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def _read_facts(path, num):
    return [json.loads((path / f"rank_{rank}.json").read_text()) for rank in range(num)]


def test_modules_that_a_node_lacks_travel_and_one_that_was_changed_arrives_changed(project, tmp_path, fit):
    @ray.remote(resources={"blind": 1})
    def sees():
        return os.listdir(project.parent), importlib.util.find_spec("own_loop") is None

    assert ray.get(sees.remote()) == ([], True)
    own = importlib.import_module("own_loop")
    fit(own.loop, 2, resources=BLIND, config={"path": str(tmp_path)})
    first = _read_facts(tmp_path, 2)
    for facts in first:
        assert (facts["answer"], facts["later"], facts["labels"]) == (1, "imported later", "cat dog")
        assert facts["argv"] == ["train.py", "--lr=1"]
        assert not facts["file"].startswith(str(project))
    assert first[0]["file"] == first[1]["file"]
    (project / "own_loop.py").write_text((project / "own_loop.py").read_text().replace("ANSWER = 1", "ANSWER = 2"))
    fit(importlib.reload(own).loop, name="changed", resources=BLIND, config={"path": str(tmp_path)})
    (second,) = _read_facts(tmp_path, 1)
    assert second["answer"] == 2
    assert second["file"] != first[0]["file"]
    wait_until(lambda: not any(Path(facts["file"]).parents[1].exists() for facts in (*first, second)))


def test_a_node_that_has_the_very_files_uses_them_where_they_are(project, tmp_path, fit):
    own = importlib.import_module("own_loop")
    fit(own.loop, resources=SEEING, config={"path": str(tmp_path)})
    (facts,) = _read_facts(tmp_path, 1)
    assert (facts["file"], facts["cwd"]) == (str(project / "own_loop.py"), str(project))


def test_a_working_dir_of_this_machine_travels_and_variables_are_those_that_were_given(project, fit, monkeypatch):
    monkeypatch.setenv("PACELINE_REPORT_NOTICE_S", "7")
    monkeypatch.setenv("PACELINE_PREEMPTION_GRACE_S", "8")
    monkeypatch.setenv("OF_THE_DRIVER", "1")
    (project / "wanted").mkdir()
    (project / "wanted" / "table.txt").write_text("rows")
    (project / "wanted" / "own_beside.py").write_text("VALUE = 3")
    names = ("PACELINE_REPORT_NOTICE_S", "PACELINE_PREEMPTION_GRACE_S", "OF_THE_DRIVER", "OMP_NUM_THREADS", "GIVEN")

    def look():
        import own_beside

        of_ray = sorted(name for name in os.environ if name.startswith(("RAY_JOB", "RAY_RAYLET", "RAY_CLIENT", "SPT_")))
        table = Path("table.txt").read_text()
        return {n: os.environ.get(n) for n in names}, of_ray, table, own_beside.VALUE, os.environ["RAY_ADDRESS"]

    env_vars = {"PACELINE_PREEMPTION_GRACE_S": "9", "OMP_NUM_THREADS": "3", "GIVEN": "yes"}
    result = fit(look, resources=BLIND, worker_runtime_env={"working_dir": "wanted", "env_vars": env_vars})
    variables, of_ray, table, value, address = result.return_value
    assert list(variables.values()) == ["7", "9", None, "3", "yes"]
    assert of_ray == []
    assert (table, value) == ("rows", 3)
    assert address == ray.get_runtime_context().gcs_address


REFUSED = {
    "no paceline": (
        ("paceline/__init__.py", "raise ModuleNotFoundError(\"No module named 'paceline'\", name='paceline')"),
        ("is not installed on node", "{version} (Python ", "hint: install", "another attempt would end the same way"),
    ),
    "another paceline": (
        ("paceline/__init__.py", "__version__ = '0.0.1'"),
        ("has Paceline 0.0.1", "{version} (Python ", "hint: install", "another attempt would end the same way"),
    ),
    "another python": (
        ("platform.py", f"exec(open({platform.__file__!r}).read())\npython_version = lambda: '3.9.1'"),
        ("has Python 3.9.1 with Paceline", "the driver Python 3.", "hint: functions cannot be sent between minor"),
    ),
    "an actor that cannot start": (("xxhash.py", "raise ImportError('planted')"), ("ImportError: planted", "node")),
    "no such environment": (None, ("cannot set up the workers' environment on node", "worker_runtime_env")),
}


def plant_module(tmp_path, name, source):
    """Return the environment of a worker that finds this module before any other of the name."""
    (tmp_path / "there" / name).parent.mkdir(parents=True)
    (tmp_path / "there" / name).write_text(source)
    return {"env_vars": {"PYTHONPATH": os.pathsep.join([str(tmp_path / "there"), *sys.path])}}


@pytest.mark.parametrize(("module", "parts"), REFUSED.values(), ids=REFUSED)
def test_a_node_that_cannot_have_workers_is_reported_in_a_few_sentences(module, parts, tmp_path, fit, capfd):
    environment = plant_module(tmp_path, *module) if module is not None else {"conda": "no-such-environment"}
    with pytest.raises(TrainingFailedError) as raised:
        fit(lambda: None, worker_runtime_env=environment)
    text = str(raised.value)
    for part in parts:
        assert part.format(version=paceline.__version__) in text
    assert len(text) < 1200
    assert "Traceback" not in capfd.readouterr().err or module is None


def test_a_node_whose_clock_is_off_is_named_and_trains(tmp_path, fit, capfd):
    source = "import time\nreal = time.time\ntime.time = lambda: real() + 3600"
    environment = plant_module(tmp_path, "sitecustomize.py", source)
    assert fit(lambda: "trained", worker_runtime_env=environment).return_value == "trained"
    said = capfd.readouterr().err
    (node,) = (node for node in ray.nodes() if node["NodeID"] in said)
    assert (
        f"paceline: the clock of node {node['NodeManagerAddress']} ({node['NodeID']}) is 3,600 s ahead of this "
        "machine's; clocks must agree to 300 s, or" in said
    ), said


@ray.remote(num_cpus=0)
class Counter:
    def __init__(self):
        self.seen = []

    def add(self, number):
        self.seen.append(number)
        return len(self.seen)


@ray.remote(num_cpus=0)
def double(number):
    return 2 * number


def test_ray_works_in_the_function_and_a_worker_that_is_killed_leaves_nothing(tmp_path, fit):
    """Handles, references, tasks, named actors and actors of its own; Ray connects at its first use."""
    counter = Counter.options(name="counter").remote()
    reference = ray.put({"a": [1, 2]})

    def loop(config):
        import ray

        handler = signal.getsignal(signal.SIGTERM)
        mine = ray.remote(num_cpus=0)(type("Mine", (), {"pid": lambda self: __import__("os").getpid()})).remote()
        count = ray.get(config["counter"].add.remote(5))
        doubled = ray.get(double.remote(21))
        named = ray.get(ray.get_actor("counter").add.remote(6))
        facts = [count, doubled, named, ray.get(config["reference"]), ray.get_runtime_context().namespace]
        assert signal.getsignal(signal.SIGTERM) is handler
        train.report({"facts": [*facts, handler.__module__], "pid": ray.get(mine.pid.remote())})
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(TrainingFailedError, match="killed by SIGKILL") as raised:
        fit(loop, config={"counter": counter, "reference": reference})
    metrics = raised.value.result.metrics
    here = ray.get_runtime_context().namespace
    assert metrics["facts"] == [1, 42, 2, {"a": [1, 2]}, here, "paceline._worker.signals"]
    wait_until(lambda: not psutil.pid_exists(metrics["pid"]))
    assert (tmp_path / "run" / "logs" / "attempt_1" / "rank_0.log").read_text() == ""
    ray.kill(counter)
