"""The room of a search on this machine: parts with cores and GPUs of their own, and trials that keep to them."""

import os

import pytest
from tuners import make_tuner

from paceline import tune
from paceline._core.resource_planner import ResourceBundle
from paceline._engine.base import WorkerResources
from paceline._engine.local.devices import Machine
from paceline.train import RunConfig, ScalingConfig
from paceline.tune.driver.resource_ledger import TrialNeeds
from paceline.tune.driver.search_capacity import LocalSearchCapacity, open_search_capacity
from paceline.tune.trainables.resources import to_trial_needs

GPUS = ("0", "3", "GPU-8932f937", "5")


@pytest.fixture
def capacity():
    return LocalSearchCapacity(Machine(8, GPUS))


@pytest.fixture
def run_config(tmp_path):
    return RunConfig(storage_path=tmp_path, name="run")


def needs(scaling):
    return to_trial_needs(scaling, is_explicit="CPU" in (scaling.resources_per_worker or {}))


def visible(shares):
    (seen,) = {share.env["CUDA_VISIBLE_DEVICES"] for share in shares}
    return seen.split(",") if seen else []


def test_trials_have_gpus_of_their_own_by_the_names_that_cuda_knows(capacity, run_config):
    scaling = ScalingConfig(2, use_gpu=True)
    parts = [capacity.allocate(needs(scaling)) for _ in range(2)]
    shares = [part.make_target(scaling, run_config).compute_shares(2) for part in parts]
    assert [visible(each) for each in shares] == [["0", "3"], ["GPU-8932f937", "5"]]
    assert [share.devices for share in shares[1]] == [(0,), (1,)]
    assert capacity.allocate(needs(scaling)) is None
    capacity.release(parts[0])
    assert visible(capacity.allocate(needs(scaling)).make_target(scaling, run_config).compute_shares(2)) == ["0", "3"]


def test_workers_on_parts_of_gpus_sit_where_the_room_has_put_them(capacity, run_config):
    """Both halves that are left lie on different GPUs: the second worker is not put on the first one's."""
    most = ScalingConfig(1, use_gpu=True, resources_per_worker={"GPU": 0.6})
    for _ in range(4):
        capacity.allocate(needs(most))
    scaling = ScalingConfig(2, use_gpu=True, resources_per_worker={"GPU": 0.4})
    shares = capacity.allocate(needs(scaling)).make_target(scaling, run_config).compute_shares(2)
    assert [share.devices for share in shares] == [(0,), (1,)]
    assert visible(shares) == ["0", "3"]


def test_threads_follow_from_the_cores_of_the_part_and_an_elastic_run_has_as_many_workers(capacity, run_config):
    def threads(scaling):
        target = capacity.allocate(needs(scaling)).make_target(scaling, run_config)
        share = target.compute_shares(scaling.max_workers)[0]
        assert share.env["OMP_NUM_THREADS"] == str(share.num_threads)
        return share.num_threads

    assert threads(ScalingConfig(1)) == 1
    assert threads(ScalingConfig(1, resources_per_worker={"CPU": 3})) == 3
    assert threads(ScalingConfig(2)) == 1
    assert threads(ScalingConfig(1, use_gpu=True)) == 2, "of cores that were not asked for, what there is for each GPU"
    scaling = ScalingConfig((1, 2), use_gpu=True)
    engine = capacity.allocate(needs(scaling)).make_target(scaling, run_config).make_engine(None, print)
    try:
        assert engine.capacity(WorkerResources(0.0, 1.0), 1, 2) == 2
        assert engine.capacity(WorkerResources(0.0, 1.0), 1, 4) == 2
        assert engine.capacity(WorkerResources(1.0, 0.0), 1, 8) == 4
    finally:
        engine.close()


def test_one_process_has_what_all_bundles_of_its_trial_have_and_validation_is_beside_the_workers(capacity, run_config):
    scaling = ScalingConfig(1, use_gpu=True, resources_per_worker={"CPU": 2, "GPU": 2})
    part = capacity.allocate(TrialNeeds((ResourceBundle(1, 0), ResourceBundle(1, 1), ResourceBundle(0, 1))))
    assert [share.devices for share in part.make_target(scaling, run_config).compute_shares(1)] == [(0, 1)]
    capacity.release(part)
    scaling = ScalingConfig(1, use_gpu=True)
    for _ in range(2):
        requested = TrialNeeds((ResourceBundle(0, 1), ResourceBundle(1, 1)))
        site = capacity.allocate(requested).make_target(scaling, run_config)
        workers, beside = site.compute_shares(1), site.compute_auxiliary_share(num_cpus=1, num_gpus=1)
        own, other = workers[0].env["CUDA_VISIBLE_DEVICES"].split(","), beside.env["CUDA_VISIBLE_DEVICES"]
        assert own[workers[0].devices[0]] != other
        assert other in own


def test_this_machine_refuses_what_it_can_never_have_and_ignores_resources_of_clusters(capacity, run_config):
    requested = needs(ScalingConfig(1, resources_per_worker={"CPU": 1, "special": 7}, accelerator_type="A100"))
    assert requested.bundles[0].others == (("accelerator_type:A100", 0.001), ("special", 7.0))
    assert capacity.find_refusal(requested) is None
    assert capacity.allocate(requested) is not None
    scaling = ScalingConfig(1, label_selector={"zone": "a"})
    with pytest.raises(ValueError, match="label_selector"):
        capacity.allocate(needs(scaling)).make_target(scaling, run_config)
    assert capacity._ledger.describe() == "8 cores, 4 GPUs"
    refusal = capacity.find_refusal(needs(ScalingConfig(5, use_gpu=True)))
    assert "needs 5 x (1 GPU), and this machine has 8 cores, 4 GPUs" in refusal
    assert capacity.find_refusal(needs(ScalingConfig(9, resources_per_worker={"CPU": 1}))) is not None
    assert capacity.find_refusal(needs(ScalingConfig(9))) is None


def test_warns_once_about_a_trial_that_gets_less_than_it_could_use():
    messages = []
    capacity = LocalSearchCapacity(Machine(2, ()), messages.append)
    for _ in range(3):
        capacity.release(capacity.allocate(needs(ScalingConfig(5))))
    assert messages == [
        "a trial needs 5 cores, and this machine has 2 cores: trials run one at a time and share all cores"
    ]


def test_the_room_is_that_of_the_engine(run_config):
    capacity = open_search_capacity(run_config)
    capacity.refresh()
    assert capacity._ledger.describe() == "8 cores, 3 GPUs"
    other = open_search_capacity(run_config)
    assert capacity.allocate(needs(ScalingConfig(8, resources_per_worker={"CPU": 1}))) is not None
    assert other.allocate(needs(ScalingConfig(1))) is None  # Searches of one process share the machine.
    capacity.close()
    assert other.allocate(needs(ScalingConfig(1))) is not None
    other.close()


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Eight cores and three GPUs, as far as anybody can see."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("paceline._engine.local.devices.count_gpus", lambda: 3)
    monkeypatch.setattr("paceline._core.system.num_cores", lambda: 8)


def sitting():
    """A function that sits down on the GPUs it sees, each taken once; the first ones stay until three are there."""

    def sit(config):
        import time

        visible = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        taken = [os.path.join(config["path"], f"gpu-{name}") for name in visible]
        for seat in taken:
            os.close(os.open(seat, os.O_CREAT | os.O_EXCL))  # raises where another trial is
        os.close(os.open(os.path.join(config["path"], str(os.getpid())), os.O_CREAT))
        while sum(name.isdigit() for name in os.listdir(config["path"])) < 3:
            time.sleep(0.01)
        for seat in taken:
            os.unlink(seat)
        tune.report({"gpus": visible, "threads": os.environ["OMP_NUM_THREADS"]})

    return sit


def test_no_two_trials_see_the_same_whole_gpu(tmp_path):
    (tmp_path / "seats").mkdir()
    sit = tune.with_resources(sitting(), {"cpu": 2, "gpu": 1})
    grid = make_tuner(tmp_path, sit, {"path": str(tmp_path / "seats")}, num_samples=12).fit()
    assert not grid.errors, grid.errors
    messages = [result.metrics for result in grid]
    assert {name for metrics in messages for name in metrics["gpus"]} == {"0", "1", "2"}
    assert {len(metrics["gpus"]) for metrics in messages} == {1}
    assert {metrics["threads"] for metrics in messages} == {"2"}


def test_a_trial_that_can_never_be_run_fails_alone(tmp_path):
    def messages(config):
        tune.report({"n": config["n"]})

    sized = tune.with_resources(messages, lambda config: {"cpu": config["n"]})
    grid = make_tuner(tmp_path, sized, {"n": tune.grid_search([1, 9, 8])}).fit()
    assert [result.metrics["n"] for result in grid if result.error is None] == [1, 8]
    (error,) = grid.errors
    assert "needs 9 cores, and this machine has 8 cores, 3 GPUs" in str(error)
