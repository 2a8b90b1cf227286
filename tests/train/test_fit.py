"""A run on this machine, from the function to the Result."""

import math
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from paceline import train
from paceline.train import Checkpoint, CheckpointUploadMode, DataParallelTrainer, Result, RunConfig, ScalingConfig


@pytest.fixture
def fit(tmp_path):
    """Runs a function on two workers, in a run called `run`."""

    def fit(function, num_workers=2, *, config=None, name="run", **run_config):
        return DataParallelTrainer(
            function,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers),
            run_config=RunConfig(name=name, storage_path=tmp_path, **run_config),
        ).fit()

    return fit


def test_every_worker_runs_the_function_once_and_knows_its_rank(fit):
    def function():
        context = train.get_context()
        assert context.get_world_size() == context.get_local_world_size() == 3
        assert context.get_local_rank() == context.get_world_rank()
        assert context.get_node_rank() == 0
        assert context.get_experiment_name() == "run"
        Path(context.get_storage().experiment_fs_path, f"seen-{context.get_world_rank()}").touch()

    result = fit(function, 3)
    assert sorted(path.name for path in Path(result.path).glob("seen-*")) == ["seen-0", "seen-1", "seen-2"]
    assert result.error is None


def test_metrics_without_a_checkpoint_are_kept_one_row_per_report(fit):
    def function():
        for i in range(5):
            train.report({"i": i, "eval": {"loss": 1 / (i + 1)}})

    result = fit(function)
    assert result.metrics == {"i": 4, "eval": {"loss": 0.2}}
    assert result.metrics_dataframe["i"].tolist() == [0, 1, 2, 3, 4]
    assert result.metrics_dataframe["eval/loss"].tolist()[1] == 0.5


def test_nan_and_infinity_in_metrics_arrive_as_they_were(fit):
    result = fit(lambda: train.report({"a": math.nan, "b": math.inf, "c": -math.inf}))
    assert math.isnan(result.metrics["a"])
    assert (result.metrics["b"], result.metrics["c"]) == (math.inf, -math.inf)


def test_numpy_scalars_in_metrics_become_numbers(fit):
    result = fit(lambda: train.report({"a": np.float32(0.5), "b": np.int64(3), "c": np.array([2.0])}))
    assert result.metrics == {"a": 0.5, "b": 3, "c": 2.0}


def test_the_result_can_be_read_back_from_its_path(fit):
    def function():
        train.report({"i": 1}, checkpoint=Checkpoint.from_dict({"x": 1}))
        return {"answer": 42}

    result = fit(function)
    again = Result.from_path(result.path + "/")
    assert again.metrics == {"i": 1}
    assert again.return_value == {"answer": 42}
    assert again.checkpoint.to_dict() == {"x": 1}
    assert again.best_checkpoints[0][1] == {"i": 1}


def test_result_from_path_refuses_what_is_no_run(tmp_path):
    with pytest.raises(RuntimeError, match="doesn't exist"):
        Result.from_path(tmp_path / "nothing")
    with pytest.raises(RuntimeError, match="Failed to restore the Result"):
        Result.from_path(tmp_path)


def test_rank_0s_return_value_is_in_the_result_plain_or_not(fit):
    class Thing:
        def __init__(self, rank):
            self.rank = rank

    assert fit(lambda: [train.get_context().get_world_rank(), None, "x"]).return_value == [0, None, "x"]
    assert fit(lambda: Thing(train.get_context().get_world_rank()), name="b").return_value.rank == 0


def test_a_returned_value_that_cannot_be_sent_says_so(fit):
    with pytest.raises(train.WorkerGroupError, match="the returned value cannot be sent"):
        fit(lambda: threading.Lock())


def test_config_is_received_by_a_required_and_by_an_optional_parameter(fit):
    def optional(config=None):
        train.report({"lr": config["lr"]})

    def required(config):
        train.report({"lr": config.get("lr", "none given")})

    assert fit(optional, config={"lr": 0.1}).metrics == {"lr": 0.1}
    assert fit(required, name="b").metrics == {"lr": "none given"}


def test_an_empty_config_is_no_argument_of_a_function_that_takes_none(fit):
    assert fit(lambda: train.report({"called": True}), config={}).metrics == {"called": True}


def test_closures_and_local_classes_travel_to_the_workers(fit):
    factor = 3

    class Model:
        def __call__(self, x):
            return factor * x

    assert fit(lambda: train.report({"y": Model()(2)})).metrics == {"y": 6}


def test_environment_and_directory_of_the_driver_hold_in_the_workers(fit, monkeypatch, tmp_path):
    monkeypatch.setenv("SOME_VARIABLE", "set late")
    monkeypatch.chdir(tmp_path)
    result = fit(lambda: {"env": os.environ["SOME_VARIABLE"], "cwd": os.getcwd()})
    assert result.return_value == {"env": "set late", "cwd": str(tmp_path)}


def test_threads_are_shared_out_and_the_users_own_choice_wins(fit, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    assert fit(lambda: os.environ["OMP_NUM_THREADS"]).return_value == str(max(1, cores // 2))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert fit(lambda: os.environ["OMP_NUM_THREADS"], name="b").return_value == "7"


def test_each_worker_leads_its_own_session(fit):
    result = fit(lambda: [os.getpid(), os.getpgid(0), os.getsid(0)])
    pid, group, session = result.return_value
    assert pid == group == session != os.getpid()


def test_output_of_every_rank_is_in_its_log_and_rank_0_on_the_terminal(fit, capsys):
    def function():
        print("hello from", train.get_context().get_world_rank())
        os.write(1, b"written past Python\n")

    result = fit(function)
    for rank in (0, 1):
        text = (result.log_dir / "attempt_1" / f"rank_{rank}.log").read_text()
        assert f"hello from {rank}" in text
        assert "written past Python" in text
    out = capsys.readouterr().out
    assert "[rank 0] hello from 0\n" in out
    assert "hello from 1" not in out


def test_a_run_says_two_lines_and_no_more(fit, capsys):
    fit(lambda: train.report({"x": 1}))
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2
    assert err[0].startswith("paceline: run run begins: 2 workers on this machine (")
    assert err[1] == "paceline: run run is complete after 1 report"


def test_more_workers_than_cores_is_allowed_and_said(fit, capsys):
    cores = len(os.sched_getaffinity(0))
    fit(lambda: None, cores + 1)
    assert f"more than the {cores} cores here" in capsys.readouterr().err


def test_num_workers_0_runs_in_this_very_process(fit):
    seen = []

    def function():
        seen.append((os.getpid(), threading.current_thread() is threading.main_thread()))
        train.report({"i": 1}, checkpoint=Checkpoint.from_dict({"x": 1}))
        assert train.get_checkpoint().to_dict() == {"x": 1}
        return "done"

    result = fit(function, 0)
    assert seen == [(os.getpid(), True)]
    assert result.metrics == {"i": 1}
    assert result.return_value == "done"
    assert result.checkpoint.to_dict() == {"x": 1}


def test_a_failure_with_num_workers_0_is_raised_with_its_own_traceback(fit):
    def function():
        raise ValueError("in this process")

    with pytest.raises(train.WorkerGroupError) as caught:
        fit(function, 0)
    assert isinstance(caught.value.worker_failures[0], ValueError)


def test_two_runs_in_two_threads_do_not_disturb_each_other(fit):
    results = {}

    def run(name):
        results[name] = fit(lambda: train.report({"name": name}), name=name)

    threads = [threading.Thread(target=run, args=(f"run-{i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: result.metrics["name"] for name, result in results.items()} == {
        f"run-{i}": f"run-{i}" for i in range(3)
    }


def test_collectives_give_everyone_what_rank_0_has(fit):
    def function():
        rank = train.get_context().get_world_rank()
        given = train.collective.broadcast_from_rank_zero({"from": rank, "array": np.arange(3)})
        train.collective.barrier()
        train.report({"from": given["from"], "sum": given["array"].sum()})
        return given["from"]

    assert fit(function, 3).metrics == {"from": 0, "sum": 3}


def test_what_is_gathered_comes_to_every_rank_in_the_order_of_ranks(fit):
    def function():
        rank = train.get_context().get_world_rank()
        first = train.collective.gather({"from": rank})
        train.collective.barrier()
        everybody = train.collective.gather((rank, first))
        train.report({"first": first, "all_alike": all(given == first for _, given in everybody)})

    assert fit(function, 3).metrics == {"first": [{"from": 0}, {"from": 1}, {"from": 2}], "all_alike": True}


def test_functions_of_a_session_are_refused_outside_of_one():
    for function in (train.get_context, train.get_checkpoint, train.staging_directory):
        with pytest.raises(RuntimeError, match="cannot be used outside of a Paceline training function"):
            function()
    with pytest.raises(RuntimeError, match="`report` cannot be used"):
        train.report({})


def test_a_callback_sees_every_report_of_all_ranks_and_one_that_raises_is_dropped(fit, caplog):
    class Watch(train.UserCallback):
        def __init__(self):
            self.seen = []

        def after_report(self, run_context, metrics, checkpoint):
            self.seen.append(([m["rank"] for m in metrics], checkpoint and checkpoint.to_dict()["i"]))

    class Broken(train.UserCallback):
        def after_report(self, run_context, metrics, checkpoint):
            raise RuntimeError("callback is broken")

    def function():
        rank = train.get_context().get_world_rank()
        train.report({"rank": rank})
        train.report({"rank": rank}, checkpoint=Checkpoint.from_dict({"i": 7}) if rank == 0 else None)

    watch = Watch()
    result = fit(function, callbacks=[Broken(), watch])
    assert watch.seen == [([0, 1], None), ([0, 1], 7)]
    assert result.error is None
    assert "Broken" in caplog.text or "CallbackObserver raised" in caplog.text


def test_async_reports_are_committed_by_the_time_fit_returns(fit):
    def function():
        for i in range(4):
            state = {"i": i, "weights": np.full(1000, i)}
            train.report(
                {"i": i}, checkpoint=Checkpoint.from_dict(state), checkpoint_upload_mode=CheckpointUploadMode.ASYNC
            )
            state["weights"][:] = -1  # What was reported must not change with it.
        assert [c.metrics["i"] for c in train.get_all_reported_checkpoints()] == [0, 1, 2, 3]

    result = fit(function)
    assert result.checkpoint.to_dict()["i"] == 3
    assert result.checkpoint.to_dict()["weights"].tolist() == [3] * 1000


def test_workers_draw_different_random_numbers_on_every_rank_and_in_every_run(fit):
    from paceline.train.torch import TorchTrainer

    assert TorchTrainer  # so that the workers' parent has torch, and its generator, before it forks

    def function():
        import random

        import torch

        rank = train.get_context().get_world_rank()
        drawn = f"{random.random()} {np.random.rand()} {float(torch.rand(1))}"
        Path(train.get_context().get_storage().experiment_fs_path, f"drawn-{rank}").write_text(drawn)

    paths = [Path(fit(function, name=name).path) for name in ("a", "b")]
    drawn = [(path / f"drawn-{rank}").read_text().split() for path in paths for rank in (0, 1)]
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == 4


def test_torch_without_workers_leaves_the_driver_as_it_was(tmp_path):
    """The guards of the test suite notice a changed environment."""
    from paceline.train.torch import TorchTrainer

    def function():
        import torch.distributed as dist

        return [os.environ["RANK"], dist.get_world_size()]

    config = RunConfig(storage_path=tmp_path)
    assert TorchTrainer(function, scaling_config=ScalingConfig(0), run_config=config).fit().return_value == ["0", 1]


def test_nothing_of_ours_listens_on_the_network(fit):
    import psutil

    driver = os.getpid()

    def function():
        ours = [driver, os.getppid(), os.getpid()]
        sockets = [c for pid in ours for c in psutil.Process(pid).net_connections(kind="inet")]
        return [c.status for c in sockets if c.status == psutil.CONN_LISTEN]

    assert fit(function).return_value == []
