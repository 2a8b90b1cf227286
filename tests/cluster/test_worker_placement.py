"""Placement of workers: devices, labels, strategies, ranks, refused requests and waiting for capacity."""

import json
import os
import re
import signal
import threading

import psutil
import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from paceline import train
from paceline._worker.context import current
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig, TrainingInterrupt, ValidationConfig
from processes import wait_until

SPECIAL = {"num_gpus": 2, "labels": {"zone": "b"}, "resources": {"special": 4, "accelerator_type:A100": 1}}


def make_function():
    """One that writes down what a worker knows of its place; made here, it travels by value."""

    def write_down(config):
        context = train.get_context()
        facts = {
            "local": [context.get_local_rank(), context.get_local_world_size()],
            "node": context.get_node_rank(),
            "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
            "devices": list(current().begin.devices),
            "threads": os.environ["OMP_NUM_THREADS"],
            "place": next(each.pid for each in psutil.Process().parents() if each.name() == "raylet"),
        }
        with open(os.path.join(config["path"], str(context.get_world_rank())), "w") as file:
            json.dump(facts, file)

    return write_down


def trainer_of(path, scaling, **options):
    run = RunConfig(storage_path=path, name="run")
    return DataParallelTrainer(
        make_function(), train_loop_config={"path": str(path)}, scaling_config=scaling, run_config=run, **options
    )


@pytest.fixture
def run_workers(tmp_path):
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

    class Holder:
        def ping(self):
            return "here"

    def take_cpus(*amounts):
        new = [ray.remote(Holder).options(num_cpus=amount).remote() for amount in amounts]
        ray.get([actor.ping.remote() for actor in new])
        actors.extend(new)
        return new

    yield take_cpus
    for actor in actors:
        ray.kill(actor)
    for actor in actors:  # Ray kills a moment later, and the next test counts what is free
        wait_until(lambda actor=actor: _is_gone(actor))


@pytest.mark.slow
def test_workers_get_the_devices_and_the_nodes_they_ask_for(cluster, run_workers, monkeypatch):
    cluster.add(**SPECIAL)
    exclusive = run_workers(
        2,
        use_gpu=True,
        resources_per_worker={"CPU": 1, "GPU": 1, "special": 1.5},
        accelerator_type="A100",
        label_selector={"zone": "b"},
    )
    assert [each["gpus"] for each in exclusive] == ["0,1", "0,1"], "each sees those of the run"
    assert [each["devices"] for each in exclusive] == [[0], [1]]
    (place,) = {each["place"] for each in exclusive}

    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    shared = run_workers(3, use_gpu=True, resources_per_worker={"GPU": 0.5})
    assert [each["gpus"] for each in shared] == ["0,1"] * 3
    assert [each["devices"] for each in shared] == [[0], [0], [1]]
    assert [each["threads"] for each in shared] == ["3"] * 3

    labelled = run_workers(2, resources_per_worker={"CPU": 0}, label_selector=[{"zone": "!in(b,c)"}, {"zone": "b"}])
    assert [each["place"] == place for each in labelled] == [False, True]
    assert [each["node"] for each in labelled] == [0, 1]
    assert [each["gpus"] for each in labelled] == ["", ""], "who has asked for none sees none"


@pytest.mark.slow
def test_ranks_are_node_by_node_under_every_strategy_and_begin_at_the_drivers_node(run_workers):
    def nodes(facts):
        assert [each["place"] == here for each in facts] == [each["node"] == 0 for each in facts]
        return [(each["node"], *each["local"]) for each in facts]

    here = _raylet_of(ray.get_runtime_context().get_node_id())
    packed = nodes(run_workers(3))
    assert packed in ([(0, 0, 2), (0, 1, 2), (1, 0, 1)], [(0, 0, 1), (1, 0, 2), (1, 1, 2)])
    assert nodes(run_workers(2, placement_strategy="STRICT_SPREAD")) == [(0, 0, 1), (1, 0, 1)]
    # How evenly Ray spreads them depends on what it has heard of its nodes by then.
    spread = nodes(run_workers(4, placement_strategy="SPREAD", resources_per_worker={"CPU": 0.5}))
    sizes = [[node for node, _, _ in spread].count(node) for node in range(spread[-1][0] + 1)]
    assert spread == [(node, local, size) for node, size in enumerate(sizes) for local in range(size)]


@pytest.mark.parametrize(
    ("scaling", "validation", "message"),
    [
        (ScalingConfig((5, 8)), None, "5 workers with 1 CPU each can never fit on this cluster: 4"),
        (ScalingConfig(1, use_gpu=True), None, "It has 2 nodes with 2 CPU each"),
        (ScalingConfig(1, label_selector={"zone": "a"}), None, "1 worker with 1 CPU on nodes with zone=a can never"),
        (
            ScalingConfig(3),
            ValidationConfig(print, ray_remote_kwargs={"num_cpus": 2}),
            "a validation with 2 CPU can never fit beside 3 workers",
        ),
    ],
)
def test_workers_that_can_never_fit_on_the_cluster_are_refused_at_once(tmp_path, scaling, validation, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        trainer_of(tmp_path / "runs", scaling, validation_config=validation).fit()
    assert not (tmp_path / "runs").exists()


def fit_and_act(trainer, capfd, text, act):
    """Fit, and act once this was printed; the result, and all that was printed."""
    printed, over = [], threading.Event()

    def watch():
        while not over.wait(0.05):
            printed.append("".join(capfd.readouterr()))
            if text in "".join(printed):
                act()
                return

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        result = trainer.fit()
    except TrainingInterrupt as interrupt:
        result = interrupt.result
    finally:
        over.set()
        watching.join()
    return result, "".join([*printed, *capfd.readouterr()])


@pytest.mark.slow
def test_a_run_waits_for_what_others_have_and_says_so(tmp_path, take, capfd):
    others = take(1, 1, 1)
    trainer = trainer_of(tmp_path, ScalingConfig(2))
    _, printed = fit_and_act(trainer, capfd, "waiting for capacity", lambda: ray.kill(others[0]))
    assert printed.count("waiting for capacity") == 1
    assert (
        "waiting for capacity: requested 2 workers with 1 CPU each; "
        "the cluster has 2 nodes with 2 CPU each, of which others use 3 CPU\n"
    ) in printed
    assert (tmp_path / "1").exists()


@pytest.mark.slow
def test_a_run_that_waits_for_room_is_ended_by_one_ctrl_c(tmp_path, take, capfd):
    take(2, 1)
    trainer = trainer_of(tmp_path, ScalingConfig(2))
    result, printed = fit_and_act(trainer, capfd, "waiting for capacity", lambda: os.kill(os.getpid(), signal.SIGINT))
    assert "was stopped after 0 reports" in printed
    assert result.status == "stopped"
    assert not (tmp_path / "0").exists()
    assert [group for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"] == []


def _raylet_of(node_id):
    """The pid of the process that a node is here."""
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.get(ray.remote(lambda: os.getppid()).options(num_cpus=0, scheduling_strategy=there).remote())


def _is_gone(actor):
    try:
        ray.get(actor.ping.remote())
    except ray.exceptions.RayActorError:
        return True
    return False
