"""Workers where they were asked to be: devices, labels, strategies, ranks; what is refused, and what is waited for."""

import json
import os
import signal
import tempfile
import threading

import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from paceline._engine.base import Needs
from paceline._engine.ray.engine import RayEngine
from paceline._engine.ray.look import looked
from paceline._engine.ray.placement import Wanted
from paceline.train import (
    Checkpoint,
    DataParallelTrainer,
    RunConfig,
    ScalingConfig,
    ValidationConfig,
    get_context,
    report,
)

SPECIAL = {
    "num_cpus": 2,
    "num_gpus": 2,
    "labels": {"zone": "b"},
    "resources": {"special": 4, "accelerator_type:A100": 1},
}


def telling():
    """A function that writes down what a worker knows of its place; made here, it travels by value."""

    def tell(config):
        import psutil

        from paceline._worker.context import current

        context = get_context()
        told = {
            "local": [context.get_local_rank(), context.get_local_world_size()],
            "node": context.get_node_rank(),
            "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
            "devices": list(current().begin.devices),
            "threads": os.environ["OMP_NUM_THREADS"],
            "place": next(each.pid for each in psutil.Process().parents() if each.name() == "raylet"),
        }
        with open(os.path.join(config["path"], str(context.get_world_rank())), "w") as file:
            json.dump(told, file)

    return tell


def trainer_of(path, scaling, **options):
    run = RunConfig(storage_path=path, name="run")
    return DataParallelTrainer(
        telling(), train_loop_config={"path": str(path)}, scaling_config=scaling, run_config=run, **options
    )


@pytest.fixture
def told_by(tmp_path):
    """What workers tell who were asked for in some way."""
    runs = iter(range(100))

    def run(num_workers, **scaling):
        path = tmp_path / str(next(runs))
        path.mkdir()
        trainer_of(path, ScalingConfig(num_workers, **scaling)).fit()
        return [json.loads((path / str(rank)).read_text()) for rank in range(num_workers)]

    return run


@pytest.fixture
def take():
    """Have others take CPUs; they give them back when told to."""
    actors = []

    class Taken:
        def ping(self):
            return "here"

    def taken(*amounts):
        new = [ray.remote(Taken).options(num_cpus=amount).remote() for amount in amounts]
        ray.get([actor.ping.remote() for actor in new])
        actors.extend(new)
        return new

    yield taken
    for actor in actors:
        ray.kill(actor)
    for actor in actors:  # Ray kills a moment later, and the next test counts what is free
        _until(lambda actor=actor: _is_gone(actor), timeout_s=60.0)


def test_workers_get_the_devices_and_the_nodes_they_ask_for(cluster, told_by, monkeypatch):
    cluster.add(**SPECIAL)
    whole = told_by(
        2,
        use_gpu=True,
        resources_per_worker={"CPU": 1, "GPU": 1, "special": 1.5},
        accelerator_type="A100",
        label_selector={"zone": "b"},
    )
    assert [each["gpus"] for each in whole] == ["0,1", "0,1"], "each sees those of the run"
    assert [each["devices"] for each in whole] == [[0], [1]]
    (place,) = {each["place"] for each in whole}

    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    shared = told_by(3, use_gpu=True, resources_per_worker={"GPU": 0.5})
    assert [each["gpus"] for each in shared] == ["0,1"] * 3
    assert [each["devices"] for each in shared] == [[0], [0], [1]]
    assert [each["threads"] for each in shared] == ["3"] * 3

    labelled = told_by(2, resources_per_worker={"CPU": 0}, label_selector=[{"zone": "!in(b,c)"}, {"zone": "b"}])
    assert [each["place"] == place for each in labelled] == [False, True]
    assert [each["node"] for each in labelled] == [0, 1]
    assert [each["gpus"] for each in labelled] == ["", ""], "who has asked for none sees none"


def test_ranks_are_node_by_node_under_every_strategy_and_begin_at_the_drivers_node(told_by):
    def nodes(told):
        assert [each["place"] == here for each in told] == [each["node"] == 0 for each in told]
        return [(each["node"], *each["local"]) for each in told]

    here = _raylet_of(ray.get_runtime_context().get_node_id())
    packed = nodes(told_by(3))
    assert packed in ([(0, 0, 2), (0, 1, 2), (1, 0, 1)], [(0, 0, 1), (1, 0, 2), (1, 1, 2)])
    assert nodes(told_by(2, placement_strategy="STRICT_SPREAD")) == [(0, 0, 1), (1, 0, 1)]
    # How evenly Ray spreads them depends on what it has heard of its nodes by then.
    spread = nodes(told_by(4, placement_strategy="SPREAD", resources_per_worker={"CPU": 0.5}))
    sizes = [[node for node, _, _ in spread].count(node) for node in range(spread[-1][0] + 1)]
    assert spread == [(node, local, size) for node, size in enumerate(sizes) for local in range(size)]


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        (ScalingConfig(5), "5 workers with 1 CPU each can never be had on this cluster: it has room for 4 of them"),
        (ScalingConfig((5, 8)), "5 workers with 1 CPU each can never be had"),
        (ScalingConfig(1, use_gpu=True), "It has 2 nodes with 2 CPU each"),
        (ScalingConfig(3, placement_strategy="STRICT_SPREAD"), "hint: with placement_strategy='SPREAD' there is room"),
        (ScalingConfig(1, label_selector={"zone": "a"}), "1 worker with 1 CPU on nodes with zone=a can never"),
        (ScalingConfig(1, resources_per_worker={"special": 1}), "1 worker with 1 special can never be had"),
    ],
)
def test_what_the_cluster_can_never_give_is_refused_at_once(tmp_path, scaling, said):
    with pytest.raises(ValueError) as refused:
        trainer_of(tmp_path / "runs", scaling).fit()
    assert said in str(refused.value)
    assert not (tmp_path / "runs").exists()


def test_a_validation_that_can_never_fit_beside_the_workers_is_refused(tmp_path):
    asked = ValidationConfig(print, ray_remote_kwargs={"num_cpus": 2})
    with pytest.raises(ValueError, match="a validation with 2 CPU can never be had beside 4 workers with 1 CPU each"):
        trainer_of(tmp_path / "runs", ScalingConfig(4), validation_config=asked).fit()
    with pytest.raises(ValueError, match="a validation with 2 CPU can never be had beside 3 workers"):
        trainer_of(tmp_path / "runs", ScalingConfig(3), validation_config=asked).fit()
    assert not (tmp_path / "runs").exists()


def test_a_validation_that_asks_for_nothing_runs_beside_workers_that_have_every_cpu(tmp_path):
    def function():
        with tempfile.TemporaryDirectory() as path:
            report({}, checkpoint=Checkpoint.from_directory(path), validation=True)

    def validate(checkpoint):
        return {"place": os.environ["CUDA_VISIBLE_DEVICES"]}

    result = DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(4),
        run_config=RunConfig(storage_path=tmp_path),
        validation_config=ValidationConfig(validate),
    ).fit()
    assert result.best_checkpoints[0][1] == {"place": ""}


def test_a_run_waits_for_what_others_have_and_says_so(tmp_path, take, capfd):
    others = take(1, 1, 1)
    path = tmp_path / "told"
    path.mkdir()
    trainer = trainer_of(path, ScalingConfig(2))
    said = Said(capfd, "waiting for room", lambda: ray.kill(others[0]))
    with said:
        trainer.fit()
    assert said.text.count("waiting for room") == 1
    assert (
        "waiting for room: 2 workers with 1 CPU each are asked for; "
        "the cluster has 2 nodes with 2 CPU each, of which others have 3 CPU\n"
    ) in said.text
    assert (path / "1").exists()


def test_a_run_that_waits_for_room_is_ended_by_one_ctrl_c(tmp_path, take, capfd):
    take(2, 1)
    trainer = trainer_of(tmp_path, ScalingConfig(2))
    with Said(capfd, "waiting for room", lambda: os.kill(os.getpid(), signal.SIGINT)) as said:
        result = trainer.fit()
    assert "stopped after report 0; run the script again with the same name to continue" in said.text
    assert result.error is None
    assert not (tmp_path / "0").exists()
    others = [group for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"]
    assert others == []


def test_room_is_what_others_leave_and_what_is_ours(take):
    engine = RayEngine(Wanted({"CPU": 1}))
    spread = RayEngine(Wanted({"CPU": 0.5}, "STRICT_SPREAD"))
    try:
        _until(lambda: engine.capacity(Needs(), 1, 8) == 4)
        assert engine.capacity(Needs(), 1, 3) == 3
        others = take(2, 1)
        _until(lambda: engine.capacity(Needs(), 1, 8) == 1)
        assert spread.capacity(Needs(), 1, 8) == 1
        ray.kill(others[0])
        _until(lambda: engine.capacity(Needs(), 1, 8) == 3)
        assert spread.capacity(Needs(), 1, 8) == 2
        assert not looked().grows
    finally:
        engine.close()
        spread.close()


def _raylet_of(node_id):
    """The pid of the process that a node is here."""
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.get(ray.remote(lambda: os.getppid()).options(num_cpus=0, scheduling_strategy=there).remote())


class Said:
    """What is printed in a block; something is done once a text has been."""

    def __init__(self, capfd, awaited, then):
        self._capfd = capfd
        self._awaited = awaited
        self._then = then
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.text = ""

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()
        self._take()

    def _read(self):
        while not self._over.wait(0.05):
            self._take()
            if self._awaited in self.text and self._then is not None:
                then, self._then = self._then, None
                then()

    def _take(self):
        out, err = self._capfd.readouterr()
        self.text += out + err


def _is_gone(actor):
    try:
        ray.get(actor.ping.remote())
    except ray.exceptions.RayActorError:
        return True
    return False


def _until(holds, timeout_s=10.0):
    """The cluster tells a moment late of what was taken or given back."""
    over = threading.Event()
    for _ in range(int(timeout_s / 0.05)):
        if holds():
            return
        over.wait(0.05)
    raise AssertionError("it never came to be")
