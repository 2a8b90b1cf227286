"""A trial that itself starts a run: reports passed on, resources shared, and nothing left when anybody is killed."""

import os
import time
from pathlib import Path

import pytest

from paceline import train
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig, TrainingFailedError
from paceline.tune import RunConfig as SearchRunConfig
from paceline.tune import Tuner, grid_search
from paceline.tune import session as tune
from paceline.tune.integration import ray_train
from paceline.tune.integration.train import TuneReportCallback
from paceline.tune.trainables.wrapping import with_resources
from processes import still_running


def loop(config):
    """Counts to `to`, with a checkpoint each; `dies` is called with each step."""
    checkpoint = train.get_checkpoint()
    start = checkpoint.to_dict()["step"] if checkpoint is not None else 0
    for step in range(start, config.get("to", 4)):
        saved = train.Checkpoint.from_dict({"step": step + 1})
        with_checkpoint = config.get("saves", True)
        train.report({"step": step, "start": start}, checkpoint=saved if with_checkpoint else None)
        if train.get_context().get_world_rank() == 0:
            config.get("then", lambda step, start: None)(step, start)


def fitted(config, num_workers=2, **arguments):
    """A run in a trial."""
    arguments.setdefault("callbacks", [TuneReportCallback()])
    run = {"scaling_config": ScalingConfig(num_workers), "run_config": RunConfig(name="inner", **arguments)}
    return DataParallelTrainer(loop, train_loop_config=config, **run).fit()


def test_reports_and_checkpoints_of_the_run_become_the_trials(run_trial, tmp_path):
    keep_one = train.CheckpointConfig(num_to_keep=1)
    result = run_trial(lambda config: fitted({}, checkpoint_config=keep_one) and None)
    directory = tmp_path / "search" / "trial_00000"
    inner = directory / "runs" / "inner"
    assert result.metrics == {"step": 3, "start": 0, "checkpoint_path": str(inner / "checkpoint_000004")}
    assert [*result.metrics_dataframe["step"]] == [0, 1, 2, 3]
    assert result.checkpoint is not None
    assert result.checkpoint.path == str(directory / "checkpoint_000004")
    assert result.checkpoint.to_dict() == {"step": 4}
    result.checkpoint.verify()
    for file in (inner / "checkpoint_000004").glob("state*"):
        assert os.stat(file).st_ino == os.stat(directory / "checkpoint_000004" / file.name).st_ino, "it was copied"
    # The trial keeps what the run lets go.
    kept = [checkpoint.to_dict() for checkpoint, _ in result.best_checkpoints or []]
    assert kept == [{"step": 1}, {"step": 2}, {"step": 3}, {"step": 4}]


def kills(pid, at):
    def then(step, start):
        if step == at and start == 0:
            os.kill(pid, 9)
            time.sleep(60)  # Until the death of the trial takes this process along.

    return then


@pytest.mark.parametrize("saves", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_retried_trial_resumes_its_inner_run(run_trial, saves):
    def trial(config):
        begun = Path(tune.get_context().get_trial_dir()) / "begun"
        then = {} if begun.exists() else {"then": kills(os.getpid(), 2)}
        begun.touch()
        fitted({**then, "saves": saves})

    result = run_trial(trial, failure_config={"max_failures": 1})
    # Whatever the trial had not heard when it was killed, it hears before the run goes on.
    assert [*result.metrics_dataframe["step"]] == [0, 1, 2, 3]
    last = result.metrics or {}
    assert last["start"] in ((2, 3) if saves else (0,))


@pytest.mark.slow
def test_a_run_that_was_complete_tells_a_trial_that_is_tried_again(run_trial):
    def trial(config):
        fitted({"saves": False})
        if "ended" not in os.listdir(tune.get_context().get_trial_dir()):
            (Path(tune.get_context().get_trial_dir()) / "ended").touch()
            os._exit(1)

    result = run_trial(trial, failure_config={"max_failures": 1})
    assert [*result.metrics_dataframe["step"]] == [0, 1, 2, 3]


def named_after_trial(config):
    """Names its run after the trial, by `get_trial_id` as scripts for Ray do, or by its name, which may come again."""
    name, place = f"train-{getattr(tune.get_context(), config['by'])()}", config["place"]
    DataParallelTrainer(
        lambda config: train.report({"loss": config["lr"]}),
        train_loop_config=config,
        run_config=RunConfig(name=name, storage_path=place, callbacks=[TuneReportCallback()]),
    ).fit()


@pytest.mark.slow
def test_never_resumes_an_inner_run_of_another_search(tmp_path):
    def losses(name, rates, by):
        return Tuner(
            named_after_trial,
            param_space={"lr": grid_search(rates), "place": str(tmp_path / "inner"), "by": by},
            tune_config={"trial_name_creator": lambda trial: "mine"},
            run_config=SearchRunConfig(name=name, storage_path=tmp_path, failure_config={"max_failures": 1}),
        ).fit()

    for name, rates in (("first", [0.1, 0.2]), ("second", [0.3])):
        assert [(result.metrics or {})["loss"] for result in losses(name, rates, "get_trial_id")] == rates
    losses("third", [0.1], "get_trial_name")
    again = losses("fourth", [0.3], "get_trial_name")
    assert not again[0].metrics, "reports of the third search were passed on"
    assert "already contains a different run" in str(again.errors[0])
    assert "get_trial_id" in str(again.errors[0])


@pytest.mark.slow
def test_reports_that_restarted_workers_make_again_are_passed_on_once(run_trial):
    def dies(step, start):
        if step == 2 and not Path("died").exists():
            Path("died").touch()
            os._exit(1)

    def trial(config):
        os.chdir(tune.get_context().get_trial_dir())
        fitted({"then": dies, "saves": False}, failure_config=train.FailureConfig(max_failures=1))

    assert [*run_trial(trial).metrics_dataframe["step"]] == [0, 1, 2, 3]


def test_an_inner_run_in_the_trials_own_process(run_trial):
    def trial(config):
        fitted({}, num_workers=0)
        tune.report({"step": 4, "id": tune.get_context().get_trial_id()})

    result = run_trial(trial)
    assert [*result.metrics_dataframe["step"]] == [0, 1, 2, 3, 4]


def test_workers_of_the_run_share_what_the_trial_has(run_trial, monkeypatch):
    monkeypatch.setattr("paceline._core.system.num_cores", lambda: 8)

    def reports():
        train.report({"threads": int(os.environ["OMP_NUM_THREADS"]), "gpus": os.environ["CUDA_VISIBLE_DEVICES"]})

    def trial(config):
        run_config = RunConfig(name="inner", callbacks=[TuneReportCallback()])
        import paceline._core.system

        paceline._core.system.num_cores = lambda: 8
        DataParallelTrainer(reports, scaling_config=ScalingConfig(3), run_config=run_config).fit()

    assert run_trial(with_resources(trial, {"cpu": 6})).metrics == {"threads": 2, "gpus": ""}


def raise_error(step, start):
    raise ValueError("of the inner run")


def refuse_reports(config):
    callback = TuneReportCallback()
    callback._context.report = lambda *_: 1 / 0
    fitted({"to": 1000}, callbacks=[callback])


def ask_for_a_gpu(config):
    DataParallelTrainer(loop, scaling_config=ScalingConfig(1, use_gpu=True)).fit()


@pytest.mark.parametrize(
    ("trial", "message"),
    [
        (lambda config: fitted({"then": raise_error}) and None, "of the inner run"),
        pytest.param(refuse_reports, "TrialReportError: report 0: division by zero", marks=pytest.mark.slow),
        pytest.param(ask_for_a_gpu, r"requests 1 GPU\(s\).*no GPU", marks=pytest.mark.slow),
    ],
    ids=["error", "report", "GPU"],
)
def test_an_error_of_the_run_is_the_trials(run_trial, trial, message):
    with pytest.raises(TrainingFailedError, match=message):
        run_trial(trial)
    assert ray_train.TuneReportCallback is TuneReportCallback
    with pytest.raises(RuntimeError, match="TuneReportCallback` cannot be used outside of a trial"):
        TuneReportCallback()


KILLED = """
import os, signal, subprocess, sys, time
from paceline import train
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig
from paceline.tune import config, session as tune
from paceline.tune.integration.train import TuneReportCallback
from paceline.tune.trainables.trainable_plans import make_trainable_plan

def loop(config):
    subprocess.Popen(["sleep", "1000"])  # What a worker of the inner run itself starts.
    train.report({"step": 1}, checkpoint=train.Checkpoint.from_dict({"a": 1}))
    if train.get_context().get_world_rank() == 0:
        os.kill(config["victim"], signal.SIGKILL)
    time.sleep(1000)

def trial(config):
    victim = config["driver"] if config["who"] == "driver" else os.getpid()
    DataParallelTrainer(
        loop,
        train_loop_config={"victim": victim},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="inner", callbacks=[TuneReportCallback()]),
    ).fit()

if __name__ == "__main__":
    run_config = config.RunConfig(name="trial_00000", storage_path="search")
    make_trainable_plan(trial).make_trainer({"driver": os.getpid(), "who": sys.argv[1]}, run_config, None).fit()
"""


@pytest.mark.parametrize("who", ["driver", pytest.param("trial", marks=pytest.mark.slow)])
def test_a_kill_leaves_no_process_of_an_inner_run(run_script, processes_in, tmp_path, who):
    ended = run_script(KILLED, who)
    assert ended.returncode == (-9 if who == "driver" else 1), ended.stderr
    assert still_running(processes_in(tmp_path), within_s=60) == []
