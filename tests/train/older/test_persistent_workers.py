"""`start`, `run`, `shutdown`: workers that stay between runs."""

import builtins
import gc
import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

import paceline.data
from paceline import train
from paceline.train import Backend, BackendConfig, Checkpoint, CheckpointStrategy, Trainer, TrainingFailedError
from paceline.train.torch import TorchConfig
from processes import still_running


@pytest.fixture
def trainer(tmp_path):
    with Trainer(num_workers=2, logdir=tmp_path / "run") as trainer:
        yield trainer


def pids(trainer):
    return trainer.run(os.getpid)


def counted():
    """How often this process has been here: kept where all functions of a process find it."""
    builtins.paceline_visits = getattr(builtins, "paceline_visits", 0) + 1
    return builtins.paceline_visits


def test_the_same_processes_serve_every_run_and_keep_what_their_modules_hold(trainer):
    class Thing:
        def __init__(self, rank):
            self.rank = rank

    first = trainer.run(lambda: (os.getpid(), counted(), train.world_rank(), train.world_size(), train.local_rank()))
    second = trainer.run(lambda config: (os.getpid(), counted(), config), config={"lr": 0.1})
    assert [value[1:] for value in first] == [(1, 0, 2, 0), (1, 1, 2, 1)]
    assert [value[1:] for value in second] == [(2, {"lr": 0.1})] * 2
    assert [value[0] for value in first] == [value[0] for value in second]
    assert len({value[0] for value in first}) == 2
    assert [thing.rank for thing in trainer.run(lambda: Thing(train.world_rank()))] == [0, 1], "as what they were"
    assert trainer.run(lambda: {1: (2, np.arange(3).sum())}) == [{1: (2, 3)}] * 2


def test_reports_and_checkpoints_are_those_of_the_run_in_the_trainers_directory(trainer):
    def function(config):
        before = train.load_checkpoint()
        for epoch in range(config["epochs"]):
            train.report(loss=1.0 / (epoch + 1))
            train.save_checkpoint(epoch=epoch, weights=np.full(2, epoch))
        return before

    with pytest.raises(RuntimeError, match="no checkpoint in "):
        trainer.save_checkpoint()
    assert (trainer.latest_checkpoint, trainer.latest_checkpoint_dir, trainer.latest_run_dir) == (None, None, None)
    assert trainer.run(function, {"epochs": 2}) == [None, None]
    assert trainer.latest_checkpoint["epoch"] == 1
    assert trainer.latest_checkpoint["weights"].tolist() == [1, 1]
    assert Path(trainer.save_checkpoint().path).parent == trainer.logdir == trainer.latest_checkpoint_dir
    # A further run begins anew, unless it is given something.
    assert trainer.run(function, {"epochs": 0}) == [None, None]
    given = trainer.run(function, {"epochs": 0}, checkpoint=trainer.latest_checkpoint)
    assert [each["epoch"] for each in given] == [1, 1]
    trainer.load_checkpoint(trainer.save_checkpoint())
    assert [each["epoch"] for each in trainer.run(function, {"epochs": 0})] == [1, 1]
    assert trainer.run(function, {"epochs": 0}) == [None, None]
    trainer.load_checkpoint(Checkpoint.from_dict({"epoch": 9}))
    assert [each["epoch"] for each in trainer.run(function, {"epochs": 1})] == [9, 9]
    frame = train.Result.from_path(trainer.logdir).metrics_dataframe
    assert frame["loss"].dropna().tolist() == [1.0, 0.5, 1.0]
    # One that is started again goes on from its newest checkpoint.
    trainer.shutdown()
    assert trainer.latest_checkpoint["epoch"] == 0
    assert [each["epoch"] for each in trainer.run(function, {"epochs": 2})] == [0, 0]
    trainer.shutdown()
    with Trainer(function, num_workers=1, logdir=trainer.logdir) as again:
        assert again.latest_checkpoint["epoch"] == 1
        assert again.run(config={"epochs": 0}, checkpoint={"epoch": 5}) == [{"epoch": 5}]


@pytest.mark.parametrize("max_retries", [3, 0])
def test_a_worker_that_dies_between_runs_is_replaced_and_beyond_the_budget_the_next_run_says_so(tmp_path, max_retries):
    with Trainer(num_workers=2, logdir=tmp_path / "run", max_retries=max_retries) as trainer:
        before = [psutil.Process(pid) for pid in pids(trainer)]
        before[0].kill()
        assert psutil.wait_procs(before, timeout=240)[1] == []
        if max_retries == 0:
            with pytest.raises(TrainingFailedError, match="killed by SIGKILL"):
                trainer.run(os.getpid)
        assert not set(pids(trainer)) & {process.pid for process in before}


def test_a_notice_to_a_worker_that_stands_by_ends_them_at_once(tmp_path):
    trainer = Trainer(num_workers=2, logdir=tmp_path / "run")
    before = [psutil.Process(pid) for pid in pids(trainer)]
    before[1].terminate()
    assert psutil.wait_procs(before, timeout=240)[1] == []
    with pytest.raises(train.PreemptionError):
        trainer.shutdown()


def test_a_barrier_of_a_later_run_waits_for_all_ranks_though_they_reported_differently_often(trainer, tmp_path):
    def function(config):
        late = tmp_path / config["name"]
        for _ in range(train.world_rank()):
            train.report(x=1)
            late.touch()
        train.collective.barrier()
        return late.exists()

    assert trainer.run(function, {"name": "first"}) == trainer.run(function, {"name": "second"}) == [True, True]
    trainer.run(lambda: train.report({"y": 1}, checkpoint=Checkpoint.from_dict({"x": train.world_rank()})))
    assert trainer.latest_checkpoint == {"x": 0}


def test_an_exception_is_raised_to_the_caller_and_the_next_run_has_new_workers(tmp_path):
    def function():
        if train.world_rank() == 1:
            raise ValueError("no such row")

    with Trainer(num_workers=2, logdir=tmp_path / "run", max_retries=0) as trainer:
        before = pids(trainer)
        with pytest.raises(TrainingFailedError, match="no such row") as raised:
            trainer.run(function)
        assert isinstance(raised.value.__cause__, ValueError)
        assert "in function" in raised.value.__cause__.__notes__[0]
        assert not set(pids(trainer)) & set(before)


def test_shutdown_frees_all_and_may_be_called_again_and_so_does_the_end_of_a_trainer(trainer, tmp_path):
    processes = [psutil.Process(pid) for pid in pids(trainer)]
    trainer.shutdown()
    trainer.shutdown()
    assert not any(process.is_running() for process in processes)
    # Another driver may take the run at once.
    other = Trainer(num_workers=1, logdir=tmp_path / "run")
    process = psutil.Process(pids(other)[0])
    del other
    gc.collect()
    assert not process.is_running()


def test_a_function_of_the_caller_is_found_by_its_name(trainer):
    def train_func():
        return "the caller's own"

    assert trainer.run("train_func") == ["the caller's own"] * 2
    with pytest.raises(ValueError, match="or define nowhere in"):
        trainer.run("nowhere")


def test_the_usual_name_of_a_function_is_found_and_a_run_has_datasets_and_a_strategy_for_checkpoints(trainer):
    def train_loop_per_worker(config):
        for loss in config["losses"]:
            train.report(loss=loss)
            train.save_checkpoint(loss=loss)
        return sum(row["x"] for row in train.get_dataset_shard().iter_rows())

    def sum_both():
        return [sum(row["x"] for row in train.get_dataset_shard(name).iter_rows()) for name in ("train", "validation")]

    rows = paceline.data.from_items([{"x": i} for i in range(8)])
    best_two = CheckpointStrategy(num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min")
    parts = trainer.run(config={"losses": [3, 1, 2, 4]}, dataset=rows, checkpoint_strategy=best_two)
    assert sum(parts) == 28
    assert (trainer.best_checkpoint, trainer.latest_checkpoint) == ({"loss": 1}, {"loss": 4})
    assert Checkpoint(trainer.best_checkpoint_path).to_dict() == {"loss": 1}
    assert len(list(trainer.logdir.glob("saved_*"))) == 3, "the newest stays beside the best"
    both = trainer.run(sum_both, dataset={"train": rows, "validation": rows.limit(2)})
    assert [sum(values) for values in zip(*both, strict=True)] == [28, 1]


def test_a_worker_that_dies_within_a_run_costs_no_saved_epoch(trainer):
    def function():
        first = (train.load_checkpoint() or {"epoch": 0})["epoch"]
        for epoch in range(first, 4):
            if (epoch, first, train.world_rank()) == (2, 0, 1):
                os.kill(os.getpid(), signal.SIGKILL)
            train.save_checkpoint(epoch=epoch + 1)
        return first

    assert trainer.run(function) == [2, 2]


def test_a_run_report_by_report(trainer):
    def function():
        for step in range(3):
            train.report(step=step, rank=train.world_rank())
            train.save_checkpoint(step=step)
        return train.world_rank()

    results = trainer.run_iterator(function)
    rows = [next(results)]
    with pytest.raises(RuntimeError, match="still running"):
        results.get_final_results()
    with pytest.raises(RuntimeError, match="a run is in progress"):
        trainer.run(function)
    rows += results
    assert rows == [[{"step": step, "rank": 0}, {"step": step, "rank": 1}] for step in range(3)]
    assert results.is_finished()
    assert results.get_final_results() == [0, 1]
    # One that is left does not keep the next run from its results.
    results = trainer.run_iterator(function)
    next(results)
    del results
    gc.collect()
    assert trainer.run(lambda: "of the run") == ["of the run"] * 2


class Recorder(train.TrainingCallback):
    def __init__(self):
        self.seen = []

    def start_training(self, logdir, config, **info):
        self.seen.append((Path(logdir).name, config))

    def handle_result(self, results, **info):
        self.seen.append([each["loss"] for each in results])

    def finish_training(self, error=False, **info):
        self.seen.append(error)


def test_the_callbacks_of_a_run_hear_of_it_alone(tmp_path):
    def function(config):
        train.report(loss=train.world_rank() + config["base"])
        train.save_checkpoint(x=1)
        if config["base"] == 5:
            raise ValueError

    recorder = Recorder()
    with Trainer(num_workers=2, logdir=tmp_path / "run", max_retries=0) as trainer:
        trainer.run(function, {"base": 1}, callbacks=[recorder])
        trainer.run(function, {"base": 3})
        with pytest.raises(TrainingFailedError):
            trainer.run(function, {"base": 5}, callbacks=[recorder])
        with pytest.raises(ValueError, match="every item of callbacks must be"):
            trainer.run(function, callbacks=[object()])
    assert recorder.seen == [("run", {"base": 1}), [1, 2], False, ("run", {"base": 5}), [5, 6], True]


class Touching(Backend):
    """Leaves a file when it begins and when it ends."""

    def on_start(self, worker_group, backend_config):
        worker_group.execute((backend_config.directory / "began").touch)

    def on_shutdown(self, worker_group, backend_config):
        worker_group.execute((backend_config.directory / "ended").touch)


class TouchingConfig(BackendConfig):
    """Of a framework that does not survive a fork."""

    backend_cls = Touching
    start_method = "spawn"

    def __init__(self, directory):
        self.directory = directory


def test_a_framework_is_set_up_once_around_all_runs_of_workers_that_are_spawned(tmp_path):
    began, ended = tmp_path / "began", tmp_path / "ended"
    with Trainer(backend=TouchingConfig(tmp_path), num_workers=2, logdir=tmp_path / "run") as trainer:
        assert began.exists()
        began.unlink()
        assert pids(trainer) == pids(trainer)
        assert not ended.exists()
    assert ended.exists()
    assert not began.exists()


def test_what_cannot_be_is_refused_where_it_is_said(tmp_path):
    assert isinstance(Trainer("torch").backend_config, TorchConfig)
    assert isinstance(Trainer(TouchingConfig("x"), num_workers=2).backend_config, TouchingConfig)
    own = type("Own", (train.DataConfig,), {"configure": lambda self, *args, **options: []})()
    run, config = tmp_path / "run", train.RunConfig(name="x", storage_path=tmp_path)
    for make, message in (
        (lambda: Trainer(backend="mxnet"), r"backend must be 'torch', .*, got 'mxnet'"),
        (lambda: Trainer(num_workers=2, scaling_config={"num_workers": 2}), "scaling_config or num_workers, not both"),
        (lambda: Trainer(logdir=tmp_path, run_config=config), "not both"),
        (lambda: Trainer(num_workers=0, logdir=run).start(), "persistent workers need num_workers"),
        (lambda: Trainer(train_loop_per_worker=3), "must be a function"),
        (lambda: Trainer(logdir=run, dataset_config=own).run(print), r"Own\.configure\(\) is not called for persist"),
        (lambda: Trainer(logdir=run).fit(), r"fit\(\) needs"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


LEFT = """
import atexit, os, sys
from pathlib import Path
from paceline import train
from paceline.train import Trainer

def function():
    atexit.register(Path(f"left-{train.world_rank()}").touch)
    return os.getpid()

trainer = Trainer(num_workers=2, logdir="run")
trainer.start()
print(*trainer.run(function), flush=True)
if "raise" in sys.argv:
    raise ValueError("a bug in the script")
if "kill" in sys.argv:
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(("how", "code"), [pytest.param("end", 0, marks=pytest.mark.slow), ("raise", 1), ("kill", -9)])
def test_a_script_that_ends_without_shutdown_leaves_nothing(run_script, tmp_path, how, code):
    ended = run_script(LEFT, how)
    assert ended.returncode == code, ended.stderr
    pids = {int(pid) for pid in ended.stdout.split()}
    assert still_running([process for process in psutil.process_iter() if process.pid in pids], within_s=60) == []
    assert ("a bug in the script" in ended.stderr) == (how == "raise")
    assert "Exception ignored" not in ended.stderr
    # Unless it was killed, the workers have left in good order.
    assert len(list(tmp_path.glob("left-*"))) == (0 if how == "kill" else 2)


INTERRUPTED = """
import os, signal
from paceline import train
from paceline.train import Trainer

def function():
    step = 0
    while True:
        step += 1
        train.save_checkpoint(step=step)
        if step == 3 and train.world_rank() == 0:
            os.kill(DRIVER, signal.SIGINT)

DRIVER = os.getpid()
trainer = Trainer(num_workers=2, logdir="run")
try:
    trainer.run(function)
except train.TrainingInterrupt as interrupt:
    print("interrupted", interrupt.result.status, trainer.latest_checkpoint["step"] >= 3)
print(trainer.run(lambda: train.load_checkpoint()["step"] >= 3))
trainer.shutdown()
"""


def test_ctrl_c_stops_a_run_at_its_next_report(run_script):
    ended = run_script(INTERRUPTED)
    assert (ended.returncode, ended.stdout.splitlines()[-2:]) == (0, ["interrupted stopped True", "[True, True]"]), (
        ended.stderr
    )


def test_a_trainer_that_was_fitted_says_why_it_starts_no_workers(tmp_path):
    trainer = train.DataParallelTrainer(lambda: 1, run_config=train.RunConfig(storage_path=tmp_path))
    trainer.fit()
    with pytest.raises(RuntimeError, match="the run of this trainer is complete"):
        trainer.run()
