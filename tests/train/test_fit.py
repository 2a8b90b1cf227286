"""A run on this machine, from the function to the Result."""

import csv
import json
import os
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

from paceline import train
from paceline._view.run_reader import RunReader
from paceline.train import Checkpoint, Result, UserCallback
from paceline.train.loggers import CSVLoggerCallback, JsonLoggerCallback


def test_every_worker_runs_the_function_once_knows_its_rank_and_prints_to_its_log(fit, capsys):
    def function():
        context = train.get_context()
        assert context.get_world_size() == context.get_local_world_size() == 3
        assert context.get_local_rank() == context.get_world_rank()
        assert context.get_node_rank() == 0
        assert context.get_experiment_name() == "run"
        print("hello from", context.get_world_rank())
        os.write(1, b"written past Python\n")

    result = fit(function, 3)
    assert result.error is None
    for rank in range(3):
        text = (result.log_dir / "attempt_1" / f"rank_{rank}.log").read_text()
        assert sorted(text.splitlines()) == [f"hello from {rank}", "written past Python"]
    out = capsys.readouterr().out
    assert "[rank 0] hello from 0\n" in out
    assert "hello from 1" not in out


def test_tuples_and_small_arrays_come_back_as_they_were_and_are_lists_in_files_and_views(fit):
    def function():
        metrics = {
            "pair": (1, "x"),
            "eval": {"array": np.arange(4, dtype=np.float32).reshape(2, 2)},
            "loss": train.mean(float(train.get_context().get_world_rank())),
        }
        train.report(metrics, checkpoint=Checkpoint.from_dict({}))
        if train.get_context().get_world_rank() == 0:
            assert train.get_all_reported_checkpoints()[0].metrics["pair"] == (1, "x")
        with pytest.raises(ValueError, match=r"metrics\['big'\] must have at most 1000 elements, got .* \(1001,\)"):
            train.report({"big": np.zeros(1001)})
        return (1, 2)

    seen = []

    class Recorder(UserCallback):
        def after_report(self, run_context, metrics, checkpoint):
            seen.extend(metrics)

    result = fit(function, 2, callbacks=[Recorder(), JsonLoggerCallback(), CSVLoggerCallback()], verbose=2)
    again = Result.from_path(result.path)
    tables = [each.metrics_dataframe.iloc[0].to_dict() for each in (result, again)]
    nested = [result.metrics, again.metrics, *again.metrics_by_rank, again.best_checkpoints[0][1], *seen]
    assert len(nested) == 7
    for pair, array in [(m["pair"], m["eval"]["array"]) for m in nested] + [
        (m["pair"], m["eval/array"]) for m in tables
    ]:
        assert pair == (1, "x")
        assert (array.dtype, array.tolist()) == (np.float32, [[0, 1], [2, 3]])
    assert again.metrics["loss"] == 0.5
    assert result.return_value == again.return_value == [1, 2], "a returned tuple is a list, as in the journal"
    assert json.loads(Path(result.path, "result.json").read_text())["eval"] == {"array": [[0, 1], [2, 3]]}
    row = next(csv.DictReader(Path(result.path, "progress.csv").read_text().splitlines()))
    assert (row["pair"], row["eval/array"]) == ('[1, "x"]', "[[0.0, 1.0], [2.0, 3.0]]")
    reader = RunReader(Path(result.path))
    reader.refresh()
    shown = reader.summary().metrics
    assert (shown["pair"], shown["eval/array"]) == ('[1,"x"]', "[[0.0,1.0],[2.0,3.0]]")


def test_result_from_path_refuses_what_is_no_run(tmp_path):
    with pytest.raises(RuntimeError, match="doesn't exist"):
        Result.from_path(tmp_path / "nothing")
    with pytest.raises(RuntimeError, match="Failed to restore the Result"):
        Result.from_path(tmp_path)


def test_the_result_has_rank_0s_return_value_plain_or_not_and_can_be_read_back_from_its_path(fit):
    class Thing:
        def __init__(self, rank):
            self.rank = rank

    def function():
        train.report({"i": 1}, checkpoint=Checkpoint.from_dict({"x": 1}))
        return [train.get_context().get_world_rank(), None, "x"]

    result = fit(function)
    again = Result.from_path(result.path + "/")
    assert again.return_value == result.return_value == [0, None, "x"]
    assert again.metrics == again.best_checkpoints[0][1] == {"i": 1}
    assert again.checkpoint.to_dict() == {"x": 1}
    assert fit(lambda: Thing(train.get_context().get_world_rank()), name="b").return_value.rank == 0


def test_a_returned_value_that_cannot_be_sent_says_so(fit):
    with pytest.raises(train.WorkerGroupError, match="cannot send the return value"):
        fit(lambda: threading.Lock())


def test_config_is_received_by_a_required_and_by_an_optional_parameter(fit):
    def optional(config=None):
        train.report({"lr": config["lr"]})

    def required(config):
        train.report({"lr": config.get("lr", "none given")})

    assert fit(optional, config={"lr": 0.1}).metrics == {"lr": 0.1}
    assert fit(required, name="b").metrics == {"lr": "none given"}
    assert fit(lambda: "without", config={}, name="c").return_value == "without"


def test_closures_environment_and_directory_travel_to_workers_that_lead_their_own_sessions(fit, monkeypatch, tmp_path):
    monkeypatch.setenv("SOME_VARIABLE", "set late")
    monkeypatch.chdir(tmp_path)
    factor = 3

    class Model:
        def __call__(self, x):
            return factor * x

    def function():
        return [Model()(2), os.environ["SOME_VARIABLE"], os.getcwd()], [os.getpid(), os.getpgid(0), os.getsid(0)]

    found, (pid, group, session) = fit(function).return_value
    assert found == [6, "set late", str(tmp_path)]
    assert pid == group == session != os.getpid()


def test_threads_are_shared_out_and_the_users_own_choice_wins(fit, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    assert fit(lambda: os.environ["OMP_NUM_THREADS"]).return_value == str(max(1, cores // 2))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert fit(lambda: os.environ["OMP_NUM_THREADS"], name="b").return_value == "7"


def test_num_workers_0_runs_in_this_very_process(fit):
    observed = []

    def function():
        observed.append((os.getpid(), threading.current_thread() is threading.main_thread()))
        train.report({"i": 1}, checkpoint=Checkpoint.from_dict({"x": 1}))
        assert train.get_checkpoint().to_dict() == {"x": 1}
        return "done"

    result = fit(function, 0)
    assert observed == [(os.getpid(), True)]
    assert result.metrics == {"i": 1}
    assert result.return_value == "done"
    assert result.checkpoint.to_dict() == {"x": 1}
    with pytest.raises(train.WorkerGroupError) as caught:
        fit(lambda: 1 / 0, 0, name="fails")
    assert isinstance(caught.value.worker_failures[0], ZeroDivisionError)


def test_a_run_with_a_range_starts_with_as_many_as_there_are_cores(fit):
    size = fit(lambda: train.get_context().get_world_size(), (1, 3)).return_value
    assert size == min(3, len(os.sched_getaffinity(0)))


def test_collectives_give_everyone_what_rank_0_has_and_what_all_have_in_the_order_of_ranks(fit):
    def function():
        rank = train.get_context().get_world_rank()
        given = train.collective.broadcast_from_rank_zero({"from": rank, "array": np.arange(3)})
        first = train.collective.gather({"from": rank})
        train.collective.barrier()
        everybody = train.collective.gather((given["from"], given["array"].sum(), first))
        train.report({"first": first, "all_alike": all(found == (0, 3, first) for found in everybody)})

    assert fit(function, 3).metrics == {"first": [{"from": 0}, {"from": 1}, {"from": 2}], "all_alike": True}


def test_functions_of_a_session_are_refused_outside_of_one():
    for function in (train.get_context, train.get_checkpoint, train.staging_directory):
        with pytest.raises(RuntimeError, match="cannot be used outside of a Paceline training function"):
            function()
    with pytest.raises(RuntimeError, match="`report` cannot be used"):
        train.report({})


def test_workers_draw_different_random_numbers_on_every_rank_and_in_every_run(fit):
    # The workers' parent has torch, and its generator, before it forks: this module imports paceline.train.torch.
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


def test_nothing_of_ours_listens_on_the_network(fit):
    driver = os.getpid()

    def function():
        ours = [driver, os.getppid(), os.getpid()]
        sockets = [c for pid in ours for c in psutil.Process(pid).net_connections(kind="inet")]
        return [c.status for c in sockets if c.status == psutil.CONN_LISTEN]

    assert fit(function).return_value == []
