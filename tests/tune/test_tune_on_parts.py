"""Searches on this machine: trials keep to their parts of it, and one that can never be run is refused at once."""

import os

import pytest

from paceline import tune
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig
from paceline.tune import TuneConfig, Tuner


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Eight cores and three GPUs, as far as anybody can see."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("paceline._engine.local.devices._num_gpus", lambda: 3)
    monkeypatch.setattr("paceline._core.system.num_cores", lambda: 8)


def search(path, trainable, space, **config):
    run_config = RunConfig(storage_path=path, name="search")
    grid = Tuner(trainable, param_space=space, tune_config=TuneConfig(**config), run_config=run_config).fit()
    assert not grid.errors, grid.errors
    return [result.metrics for result in grid]


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
    told = search(tmp_path, sit, {"path": str(tmp_path / "seats")}, num_samples=12)
    assert {name for metrics in told for name in metrics["gpus"]} == {"0", "1", "2"}
    assert {len(metrics["gpus"]) for metrics in told} == {1}
    assert {metrics["threads"] for metrics in told} == {"2"}


def test_trials_of_several_workers_and_of_one_share_the_gpus_without_meeting(tmp_path):
    """Two workers of one trial see both of its GPUs; trials of different sizes never see one another's."""
    (tmp_path / "seats").mkdir()

    def sit(config):
        from paceline import train

        visible = os.environ["CUDA_VISIBLE_DEVICES"]
        rank, size = train.get_context().get_world_rank(), train.get_context().get_world_size()
        assert len(visible.split(",")) == size
        mine = os.path.join(config["path"], f"gpu-{visible.split(',')[rank]}")
        os.close(os.open(mine, os.O_CREAT | os.O_EXCL))
        train.collective.barrier()
        os.unlink(mine)
        train.report({"gpus": visible, "size": size})

    trainer = DataParallelTrainer(sit, scaling_config=ScalingConfig(1, use_gpu=True))
    space = {
        "train_loop_config": {"path": str(tmp_path / "seats")},
        "scaling_config": {"num_workers": tune.grid_search([1, 2, 1, 3, 2, 1])},
    }
    told = search(tmp_path, trainer, space)
    assert sorted(metrics["size"] for metrics in told) == [1, 1, 1, 2, 2, 3]


def test_a_search_whose_first_trial_can_never_be_run_is_refused_before_anything_runs(tmp_path):
    trainer = DataParallelTrainer(lambda: None, scaling_config=ScalingConfig(4, use_gpu=True))
    tuner = Tuner(trainer, run_config=RunConfig(storage_path=tmp_path, name="search"))
    with pytest.raises(ValueError, match=r"needs 4 x \(1 GPU\), and this machine has 8 cores, 3 GPUs"):
        tuner.fit()


def test_a_trial_that_can_never_be_run_fails_alone(tmp_path):
    def told(config):
        tune.report({"n": config["n"]})

    sized = tune.with_resources(told, lambda config: {"cpu": config["n"]})
    run_config = RunConfig(storage_path=tmp_path, name="search")
    grid = Tuner(sized, param_space={"n": tune.grid_search([1, 9, 8])}, run_config=run_config).fit()
    assert [result.metrics["n"] for result in grid if result.error is None] == [1, 8]
    (error,) = grid.errors
    assert "needs 9 cores, and this machine has 8 cores, 3 GPUs" in str(error)
