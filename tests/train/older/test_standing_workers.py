"""`start`, `run`, `shutdown`: workers that stay between runs."""

import builtins
import gc
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from paceline import data, train
from paceline.train import (
    Backend,
    BackendConfig,
    Checkpoint,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    Trainer,
    TrainingFailedError,
)
from paceline.train.torch import TorchConfig, TorchTrainer


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
    first = trainer.run(lambda: (os.getpid(), counted(), train.world_rank(), train.world_size(), train.local_rank()))
    second = trainer.run(lambda config: (os.getpid(), counted(), config), config={"lr": 0.1})
    assert [value[1:] for value in first] == [(1, 0, 2, 0), (1, 1, 2, 1)]
    assert [value[1:] for value in second] == [(2, {"lr": 0.1})] * 2
    assert [value[0] for value in first] == [value[0] for value in second]
    assert len({value[0] for value in first}) == 2


def test_values_come_back_as_what_they_were(trainer):
    class Thing:
        def __init__(self, rank):
            self.rank = rank

    things = trainer.run(lambda: Thing(train.world_rank()))
    assert [thing.rank for thing in things] == [0, 1]
    assert trainer.run(lambda: {1: (2, np.arange(3).sum())}) == [{1: (2, 3)}] * 2
    with pytest.raises(TrainingFailedError, match="the returned value cannot be sent"):
        trainer.run(threading.Lock)


def test_reports_and_checkpoints_are_those_of_the_run_in_the_trainers_directory(trainer):
    def function(config):
        before = train.load_checkpoint()
        for epoch in range(config["epochs"]):
            train.report(loss=1.0 / (epoch + 1))
            train.save_checkpoint(epoch=epoch, weights=np.full(2, epoch))
        return before

    with pytest.raises(RuntimeError, match="no checkpoint has been made"):
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


def test_a_trainer_that_is_started_again_goes_on_from_its_newest_checkpoint(tmp_path):
    def function(config):
        before = train.load_checkpoint()
        train.save_checkpoint(step=(before["step"] if before else 0) + config["add"])
        return before

    trainer = Trainer(function, num_workers=1, logdir=tmp_path / "run")
    assert trainer.run(config={"add": 1}) == [None]
    trainer.shutdown()
    assert trainer.latest_checkpoint == {"step": 1}
    assert trainer.run(config={"add": 10}) == [{"step": 1}]
    trainer.shutdown()
    again = Trainer(function, num_workers=1, logdir=tmp_path / "run")
    assert again.latest_checkpoint == {"step": 11}
    assert again.run(config={"add": 1}, checkpoint={"step": 5}) == [{"step": 5}]
    again.shutdown()


def test_a_killed_worker_is_replaced_and_the_function_goes_on_from_its_checkpoint(trainer):
    def function():
        state = train.load_checkpoint() or {"step": 0}
        for step in range(state["step"], 4):
            if step == 2 and train.world_rank() == 1 and state["step"] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            train.save_checkpoint(step=step + 1)
        return os.getpid(), state["step"]

    before = pids(trainer)
    values = trainer.run(function)
    assert [value[1] for value in values] == [2, 2]
    assert not {value[0] for value in values} & set(before)
    assert pids(trainer) == [value[0] for value in values]


def test_a_worker_that_dies_between_runs_is_replaced(trainer):
    before = pids(trainer)
    psutil.Process(before[0]).kill()
    psutil.wait_procs([psutil.Process(pid) for pid in before if psutil.pid_exists(pid)], timeout=10)
    after = pids(trainer)
    assert len(set(after)) == 2
    assert not set(after) & set(before)


def test_workers_lost_between_runs_beyond_the_budget_are_told_by_the_next_run_once(tmp_path):
    trainer = Trainer(num_workers=2, logdir=tmp_path / "run", max_retries=0)
    before = [psutil.Process(pid) for pid in pids(trainer)]
    before[0].kill()
    assert psutil.wait_procs(before, timeout=10)[1] == []
    with pytest.raises(TrainingFailedError, match="killed by SIGKILL"):
        trainer.run(os.getpid)
    assert len(pids(trainer)) == 2
    trainer.shutdown()


def test_a_notice_to_a_worker_that_stands_by_ends_them_at_once(tmp_path):
    trainer = Trainer(num_workers=2, logdir=tmp_path / "run")
    before = [psutil.Process(pid) for pid in pids(trainer)]
    before[1].terminate()
    assert psutil.wait_procs(before, timeout=10)[1] == []
    with pytest.raises(train.PreemptionError):
        trainer.shutdown()


def test_a_barrier_of_a_later_run_waits_for_all_ranks(trainer):
    def function():
        if train.world_rank() == 1:
            time.sleep(0.3)  # The others stand at the barrier, and are seen there, before this one comes.
        train.collective.barrier()
        return train.world_rank()

    assert trainer.run(function) == trainer.run(function) == [0, 1]


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


def test_an_exception_is_tried_again_within_max_retries(tmp_path):
    def function(path):
        try:
            os.mkdir(path["path"])
        except FileExistsError:
            return "second"
        raise OSError("a connection was lost")

    with Trainer(num_workers=1, logdir=tmp_path / "run", max_retries=1) as trainer:
        assert trainer.run(function, {"path": str(tmp_path / "been here")}) == ["second"]


def test_shutdown_frees_all_and_may_be_called_again(trainer, tmp_path):
    processes = [psutil.Process(pid) for pid in pids(trainer)]
    trainer.shutdown()
    trainer.shutdown()
    assert not any(process.is_running() for process in processes)
    # Another driver may take the run at once.
    with Trainer(num_workers=1, logdir=tmp_path / "run") as other:
        assert other.run(train.world_size) == [1]


def test_a_trainer_nobody_has_any_more_takes_its_workers_along(tmp_path):
    trainer = Trainer(num_workers=1, logdir=tmp_path / "run")
    process = psutil.Process(pids(trainer)[0])
    del trainer
    gc.collect()
    assert not process.is_running()


def test_a_function_of_the_callers_module_is_found_by_its_name(trainer):
    assert trainer.run() == [("the module's", 0), ("the module's", 1)]

    def train_func():
        return "the caller's own"

    assert trainer.run("train_func") == ["the caller's own"] * 2
    with pytest.raises(ValueError, match="has no function called nowhere"):
        trainer.run("nowhere")


def train_loop_per_worker():
    return "the module's", train.world_rank()


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
    with pytest.raises(RuntimeError, match="a run is under way"):
        trainer.run(function)
    rows += results
    assert rows == [[{"step": step, "rank": 0}, {"step": step, "rank": 1}] for step in range(3)]
    assert results.is_finished()
    assert results.get_final_results() == [0, 1]


def test_an_iterator_that_is_left_does_not_keep_the_next_run_from_its_results(trainer):
    def function():
        for step in range(3):
            train.report(step=step)
        return "of the iterator"

    results = trainer.run_iterator(function)
    next(results)
    del results
    gc.collect()
    assert trainer.run(lambda: "of the run") == ["of the run"] * 2


class Recorder(train.TrainingCallback):
    def __init__(self):
        self.seen = []

    def start_training(self, logdir, config, **info):
        self.seen.append(("start", Path(logdir).name, config))

    def handle_result(self, results, **info):
        self.seen.append([each["loss"] for each in results])

    def finish_training(self, error=False, **info):
        self.seen.append(("finish", error))


def test_the_callbacks_of_a_run_hear_of_it_alone(tmp_path):
    def function(config):
        train.report(loss=train.world_rank() + config["base"])
        train.save_checkpoint(x=1)
        if config["base"] == 5:
            raise ValueError

    class Raises(Recorder):
        def handle_result(self, results, **info):
            raise RuntimeError("a bug in a callback")

    recorder = Recorder()
    with Trainer(num_workers=2, logdir=tmp_path / "run", max_retries=0) as trainer:
        trainer.run(function, {"base": 1}, callbacks=[Raises(), recorder])
        trainer.run(function, {"base": 3})
        with pytest.raises(TrainingFailedError):
            trainer.run(function, {"base": 5}, callbacks=[recorder])
        with pytest.raises(ValueError, match="which is not a paceline"):
            trainer.run(function, callbacks=[object()])
    assert recorder.seen == [
        ("start", "run", {"base": 1}),
        [1, 2],
        ("finish", False),
        ("start", "run", {"base": 5}),
        [5, 6],
        ("finish", True),
    ]


def test_datasets_belong_to_a_run_and_are_divided_anew(trainer):
    def function():
        return sorted(row["id"] for _ in range(2) for row in train.get_dataset_shard().iter_rows())

    first = trainer.run(function, dataset=data.range(8))
    second = trainer.run(function, dataset={"train": data.range(4)})
    assert sorted(first[0] + first[1]) == sorted([*range(8)] * 2)
    assert sorted(second[0] + second[1]) == sorted([*range(4)] * 2)


def test_a_checkpoint_strategy_holds_from_its_run_on(trainer):
    def function():
        for loss in (3.0, 1.0, 2.0):
            train.save_checkpoint(loss=loss)

    strategy = train.CheckpointStrategy(num_to_keep=1, checkpoint_score_attribute="loss", checkpoint_score_order="min")
    trainer.run(function, checkpoint_strategy=strategy)
    assert trainer.best_checkpoint == {"loss": 1.0}
    assert trainer.latest_checkpoint == {"loss": 2.0}
    trainer.shutdown()
    kept = train.Result.from_path(trainer.logdir).best_checkpoints
    assert [metrics["loss"] for _, metrics in kept] == [2.0, 1.0]


def test_a_report_that_one_rank_never_makes_is_told_at_once(tmp_path):
    def function():
        if train.world_rank() == 0:
            train.report({}, checkpoint=Checkpoint.from_dict({"x": 1}))

    with Trainer(num_workers=2, logdir=tmp_path / "run") as trainer:
        with pytest.raises(TrainingFailedError, match="rank 1 has returned after 0 reports"):
            trainer.run(function)


def test_ranks_that_reported_differently_often_are_in_step_in_the_next_run(trainer):
    def function():
        for _ in range(train.world_rank() + 1):
            train.report(x=1)

    trainer.run(function)
    trainer.run(lambda: train.report({"y": 1}, checkpoint=Checkpoint.from_dict({"x": train.world_rank()})))
    assert trainer.latest_checkpoint == {"x": 0}


@pytest.mark.timeout(30)
def test_workers_that_stand_by_do_not_hang(tmp_path, capfd):
    limits = FailureConfig(hang_timeout_s=0.4, hang_action="fail")
    config = RunConfig(name="run", storage_path=tmp_path, failure_config=limits)
    with Trainer(num_workers=2, run_config=config) as trainer:
        trainer.run(lambda: train.report(x=1))
        before = pids(trainer)
        time.sleep(2)  # What must raise no alarm is that nothing happens, for five times as long as it may.
        assert pids(trainer) == before

        def one_stands():
            train.report(x=2)
            if train.world_rank() == 1:
                time.sleep(60)

        with pytest.raises(TrainingFailedError, match="rank 1 has stood"):
            trainer.run(one_stands)


def test_the_torch_trainer_has_the_same_verbs(tmp_path):
    def function(config):
        import torch
        import torch.distributed as dist

        total = torch.tensor([train.world_rank() + config["base"]])
        dist.all_reduce(total)
        return os.getpid(), total.item(), dist.get_backend()

    trainer = TorchTrainer(
        function,
        train_loop_config={"base": 1},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="run", storage_path=tmp_path),
    )
    trainer.start()
    first = trainer.run()
    second = trainer.run(config={"base": 2})
    trainer.shutdown()
    assert [value[1:] for value in first] == [(3, "gloo")] * 2
    assert [(value[0], value[1]) for value in second] == [(value[0], 5) for value in first]


class Spawned(BackendConfig):
    """As that of a framework which does not survive a fork."""

    start_method = "spawn"


def test_workers_that_are_spawned_stay_too(tmp_path):
    with Trainer(backend=Spawned(), num_workers=2, logdir=tmp_path / "run") as trainer:
        assert pids(trainer) == pids(trainer)


class Touching(Backend):
    """Leaves a file when it begins and when it ends."""

    def on_start(self, worker_group, backend_config):
        worker_group.execute(Path(backend_config.directory, "began").touch)

    def on_shutdown(self, worker_group, backend_config):
        worker_group.execute(Path(backend_config.directory, "ended").touch)


class TouchingConfig(BackendConfig):
    def __init__(self, directory):
        self.directory = directory

    @property
    def backend_cls(self):
        return Touching


def test_a_framework_is_set_up_once_around_all_runs(tmp_path):
    began, ended = tmp_path / "began", tmp_path / "ended"
    with Trainer(backend=TouchingConfig(str(tmp_path)), num_workers=2, logdir=tmp_path / "run") as trainer:
        assert began.exists()
        began.unlink()
        trainer.run(train.world_rank)
        trainer.run(train.world_rank)
        assert not ended.exists()
    assert ended.exists()
    assert not began.exists()


@pytest.mark.parametrize("name", ["torch", "tensorflow", "jax", "xgboost", "lightgbm"])
def test_a_framework_is_named_or_its_extra_is(name):
    try:
        config = Trainer(backend=name, num_workers=2).backend_config
    except ImportError as missing:
        assert f"paceline[{name}]" in str(missing)  # noqa: PT017  which of the two depends on what is installed
    else:
        assert type(config).__name__.lower() == f"{name}config"


def test_what_cannot_be_is_refused_where_it_is_said(tmp_path):
    assert isinstance(Trainer("torch").backend_config, TorchConfig)
    assert isinstance(Trainer(Spawned(), num_workers=2).backend_config, Spawned)
    with pytest.raises(ValueError, match="backend='mxnet' is not one of 'torch'"):
        Trainer(backend="mxnet")
    with pytest.raises(ValueError, match="num_workers beside it"):
        Trainer(num_workers=2, scaling_config=ScalingConfig(2))
    with pytest.raises(ValueError, match="both say where"):
        Trainer(logdir=tmp_path, run_config=RunConfig(name="x", storage_path=tmp_path))
    with pytest.raises(ValueError, match="no workers that could stay"):
        Trainer(num_workers=0, logdir=tmp_path / "run").start()
    with pytest.raises(ValueError, match="is not a function"):
        Trainer(train_loop_per_worker=3)
    with pytest.raises(ValueError, match=r"fit\(\) needs"):
        Trainer(logdir=tmp_path / "run").fit()


LEFT = """
import atexit
import os
import sys
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


@pytest.mark.parametrize(("how", "code"), [("end", 0), ("raise", 1), ("kill", -9)])
def test_a_script_that_ends_without_shutdown_leaves_nothing(run_script, tmp_path, how, code):
    ended = run_script(LEFT, how, timeout=30)
    assert ended.returncode == code, ended.stderr
    left = [psutil.Process(int(pid)) for pid in ended.stdout.split() if psutil.pid_exists(int(pid))]
    assert psutil.wait_procs(left, timeout=2)[1] == []
    assert ("a bug in the script" in ended.stderr) == (how == "raise")
    assert "Exception ignored" not in ended.stderr
    # Unless it was killed, the workers have left in good order.
    assert len(list(tmp_path.glob("left-*"))) == (0 if how == "kill" else 2)


INTERRUPTED = """
import os
import signal
import sys
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
except KeyboardInterrupt:
    print("interrupted", trainer.latest_checkpoint["step"] >= 3)
print(trainer.run(lambda: train.load_checkpoint()["step"] >= 3))
trainer.shutdown()
"""


def test_ctrl_c_stops_a_run_at_its_next_report(run_script):
    ended = run_script(INTERRUPTED, timeout=30)
    assert (ended.returncode, ended.stdout.splitlines()[-2:]) == (0, ["interrupted True", "[True, True]"]), ended.stderr


def test_a_notice_of_preemption_ends_a_run_at_its_next_report(run_script, tmp_path):
    ended = run_script(INTERRUPTED.replace("SIGINT", "SIGTERM"), timeout=30)
    assert ended.returncode == train.PreemptionError.EXIT_CODE, ended.stderr
    assert train.Result.from_path(tmp_path / "run").checkpoint.to_dict()["step"] >= 3


def test_a_trainer_that_was_fitted_says_why_it_starts_no_workers(tmp_path):
    trainer = train.DataParallelTrainer(lambda: 1, run_config=train.RunConfig(storage_path=tmp_path))
    trainer.fit()
    with pytest.raises(RuntimeError, match="the run of this trainer is complete"):
        trainer.run()
