"""What goes with a run to the nodes: modules, directories, variables; and Ray in the user's function."""

import importlib
import json
import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import ray

from paceline import train
from paceline.train import DataParallelTrainer, FailureConfig, Result, RunConfig, ScalingConfig, TrainingFailedError

BLIND = {"CPU": 1, "blind": 1}
SEEING = {"CPU": 1, "node:__internal_head__": 0.001}


def _fit(
    function: Callable, path: Path, *, on: dict | None = None, workers: int = 1, config: dict | None = None, **run
) -> Result:
    return DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(workers, resources_per_worker=on),
        run_config=RunConfig(storage_path=path, **run),
    ).fit()


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def project(hidden: Path, tmp_path: Path, monkeypatch) -> Path:
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
                told = {
                    "answer": ANSWER,
                    "later": VALUE,
                    "labels": Path(own_package.__file__).with_name("labels.txt").read_text(),
                    "file": __file__,
                    "argv": sys.argv,
                    "cwd": os.getcwd(),
                }
                rank = train.get_context().get_world_rank()
                Path(config["path"], f"rank_{rank}.json").write_text(json.dumps(told))
            """
        )
    )
    monkeypatch.chdir(path)
    monkeypatch.syspath_prepend(str(path))
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr=1"])
    yield path
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def _told(path: Path, num: int) -> list[dict]:
    return [json.loads((path / f"rank_{rank}.json").read_text()) for rank in range(num)]


def test_modules_that_a_node_lacks_travel_and_one_that_was_changed_arrives_changed(
    project: Path, tmp_path: Path
) -> None:
    @ray.remote(resources={"blind": 1})
    def sees() -> tuple[list[str], bool]:
        return os.listdir(project.parent), importlib.util.find_spec("own_loop") is None

    assert ray.get(sees.remote()) == ([], True)
    own = importlib.import_module("own_loop")
    _fit(own.loop, tmp_path, on=BLIND, workers=2, config={"path": str(tmp_path)})
    first = _told(tmp_path, 2)
    for told in first:
        assert (told["answer"], told["later"], told["labels"]) == (1, "imported later", "cat dog")
        assert told["argv"] == ["train.py", "--lr=1"]
        assert not told["file"].startswith(str(project))
    assert first[0]["file"] == first[1]["file"]
    (project / "own_loop.py").write_text((project / "own_loop.py").read_text().replace("ANSWER = 1", "ANSWER = 2"))
    _fit(importlib.reload(own).loop, tmp_path, on=BLIND, config={"path": str(tmp_path)})
    (second,) = _told(tmp_path, 1)
    assert second["answer"] == 2
    assert second["file"] != first[0]["file"]
    _until(lambda: not any(Path(told["file"]).parents[1].exists() for told in (*first, second)))


def test_a_node_that_has_the_very_files_uses_them_where_they_are(project: Path, tmp_path: Path) -> None:
    own = importlib.import_module("own_loop")
    _fit(own.loop, tmp_path, on=SEEING, config={"path": str(tmp_path)})
    (told,) = _told(tmp_path, 1)
    assert (told["file"], told["cwd"]) == (str(project / "own_loop.py"), str(project))


def test_a_working_dir_of_this_machine_travels_and_variables_are_those_that_were_given(
    project: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("PACELINE_REPORT_NOTICE_S", "7")
    monkeypatch.setenv("PACELINE_PREEMPTION_GRACE_S", "8")
    monkeypatch.setenv("OF_THE_DRIVER", "1")
    (project / "wanted").mkdir()
    (project / "wanted" / "table.txt").write_text("rows")
    (project / "wanted" / "own_beside.py").write_text("VALUE = 3")
    names = ("PACELINE_REPORT_NOTICE_S", "PACELINE_PREEMPTION_GRACE_S", "OF_THE_DRIVER", "OMP_NUM_THREADS", "GIVEN")

    def look() -> None:
        import own_beside

        of_ray = sorted(name for name in os.environ if name.startswith(("RAY_JOB", "RAY_RAYLET", "RAY_CLIENT", "SPT_")))
        table = Path("table.txt").read_text()
        return {n: os.environ.get(n) for n in names}, of_ray, table, own_beside.VALUE, os.environ["RAY_ADDRESS"]

    given = {"PACELINE_PREEMPTION_GRACE_S": "9", "OMP_NUM_THREADS": "3", "GIVEN": "yes"}
    result = _fit(look, tmp_path, on=BLIND, worker_runtime_env={"working_dir": "wanted", "env_vars": given})
    variables, of_ray, table, value, address = result.return_value
    assert list(variables.values()) == ["7", "9", None, "3", "yes"]
    assert of_ray == []
    assert (table, value) == ("rows", 3)
    assert address == ray.get_runtime_context().gcs_address


PACKAGES = {
    "none": ("raise ModuleNotFoundError(\"No module named 'paceline'\", name='paceline')", "is not installed on node"),
    "another": ("__version__ = '0.0.1'", "has Paceline 0.0.1"),
}


@pytest.mark.parametrize("kind", PACKAGES)
def test_a_node_without_this_paceline_is_named_with_both_versions_and_the_way_out(
    kind: str, tmp_path: Path, capfd
) -> None:
    source, told = PACKAGES[kind]
    (tmp_path / "there" / "paceline").mkdir(parents=True)
    (tmp_path / "there" / "paceline" / "__init__.py").write_text(source)
    import paceline

    with pytest.raises(TrainingFailedError) as raised:
        _fit(lambda: None, tmp_path, worker_runtime_env={"env_vars": {"PYTHONPATH": str(tmp_path / "there")}})
    text = str(raised.value)
    assert told in text
    assert ray.util.get_node_ip_address() in text
    assert f"{paceline.__version__} (Python {sys.version.split()[0]}" in text
    assert "hint: install" in text
    assert "another attempt would end the same way" in text
    assert len(text) < 1200
    assert "Traceback" not in capfd.readouterr().err


def test_an_environment_that_cannot_be_made_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailedError) as raised:
        _fit(lambda: None, tmp_path, worker_runtime_env={"conda": "no-such-environment"})
    assert "the environment of the workers could not be made on node" in str(raised.value)
    assert "worker_runtime_env" in str(raised.value)
    assert len(str(raised.value)) < 1200


def test_an_actor_that_cannot_start_is_told_by_its_exception(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "xxhash.py").write_text("raise ImportError('planted')")
    with pytest.raises(TrainingFailedError, match=r"ImportError: planted") as raised:
        _fit(
            lambda: None,
            tmp_path,
            worker_runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([str(tmp_path / "there"), *sys.path])}},
        )
    assert "node" in str(raised.value)


@ray.remote(num_cpus=0)
class Counter:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def add(self, number: int) -> int:
        self.seen.append(number)
        return len(self.seen)


@ray.remote(num_cpus=0)
def double(number: int) -> int:
    return 2 * number


def test_handles_references_tasks_and_named_actors_work_in_the_function(tmp_path: Path, capfd) -> None:
    counter = Counter.options(name="counter").remote()
    held = ray.put({"a": [1, 2]})

    def loop(config: dict) -> list:

        handler = signal.getsignal(signal.SIGTERM)
        made = ray.get(config["counter"].add.remote(5))
        doubled = ray.get(double.remote(21))
        named = ray.get(ray.get_actor("counter").add.remote(6))
        context = ray.get_runtime_context()
        kept = ray.get(config["held"])
        same = train.get_context().get_local_rank() == 0 and signal.getsignal(signal.SIGTERM) is handler
        return [made, doubled, named, kept, context.namespace, same, getattr(handler, "__module__", "")]

    result = _fit(loop, tmp_path, config={"counter": counter, "held": held}, name="run")
    here = ray.get_runtime_context().namespace
    assert result.return_value == [1, 42, 2, {"a": [1, 2]}, here, True, "paceline._worker.signals"]
    assert (tmp_path / "run" / "logs" / "attempt_1" / "rank_0.log").read_text() == ""
    ray.kill(counter)


def test_ray_connects_at_its_first_use_and_a_killed_worker_leaves_nothing(tmp_path: Path) -> None:
    counter = Counter.options(name="kept").remote()
    ray.get(counter.add.remote(1))

    def loop() -> None:

        import ray

        handler = signal.getsignal(signal.SIGTERM)
        mine = ray.remote(num_cpus=0)(type("Mine", (), {"pid": lambda self: __import__("os").getpid()})).remote()
        train.report({"pid": ray.get(mine.pid.remote()), "seen": ray.get(ray.get_actor("kept").add.remote(2))})
        assert signal.getsignal(signal.SIGTERM) is handler
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(TrainingFailedError, match="killed by SIGKILL") as raised:
        _fit(loop, tmp_path, name="run", failure_config=FailureConfig(max_failures=0))
    metrics = raised.value.result.metrics
    assert metrics["seen"] == 2
    _until(lambda: not _is_alive(metrics["pid"]))
    log = (tmp_path / "run" / "logs" / "attempt_1" / "rank_0.log").read_text()
    assert log == ""
    ray.kill(counter)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
