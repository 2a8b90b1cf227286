"""A trial that itself starts a run: reports passed on, resources shared, and nothing left when anybody is killed."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import psutil
import pytest

from paceline import train
from paceline._engine.local.launch import shared_zygote
from paceline.train import DataParallelTrainer, Result, RunConfig, ScalingConfig, TrainingFailedError
from paceline.tune import ResultGrid, Tuner, grid_search
from paceline.tune import RunConfig as SearchRunConfig
from paceline.tune import session as tune
from paceline.tune.integration import ray_train
from paceline.tune.integration.train import TuneReportCallback
from paceline.tune.trainables.wrapped import with_resources
from processes import still_running

Run = Callable[..., Result]


def loop(config: dict[str, Any]) -> None:
    """Counts to `to`, with a checkpoint each; `dies` is called with each step."""
    checkpoint = train.get_checkpoint()
    start = checkpoint.to_dict()["step"] if checkpoint is not None else 0
    for step in range(start, config.get("to", 4)):
        saved = train.Checkpoint.from_dict({"step": step + 1})
        with_checkpoint = config.get("saves", True)
        train.report({"step": step, "start": start}, checkpoint=saved if with_checkpoint else None)
        if train.get_context().get_world_rank() == 0:
            config.get("then", lambda step, start: None)(step, start)


def fitted(config: dict[str, Any], num_workers: int = 2, **arguments: Any) -> Result:
    """A run in a trial."""
    arguments.setdefault("callbacks", [TuneReportCallback()])
    return DataParallelTrainer(
        loop,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers),
        run_config=RunConfig(name="inner", **arguments),
    ).fit()


def test_reports_and_checkpoints_of_the_run_become_the_trials(run_trial: Run, tmp_path: Path) -> None:
    result = run_trial(lambda config: fitted({}) and None)
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


def test_the_trial_keeps_a_checkpoint_that_the_run_lets_go(run_trial: Run) -> None:
    result = run_trial(lambda config: fitted({}, checkpoint_config=train.CheckpointConfig(num_to_keep=1)) and None)
    kept = [checkpoint.to_dict() for checkpoint, _ in result.best_checkpoints or []]
    assert kept == [{"step": 1}, {"step": 2}, {"step": 3}, {"step": 4}]


def kills(pid: int, at: int) -> Callable[[int, int], None]:
    def then(step: int, start: int) -> None:
        if step == at and start == 0:
            os.kill(pid, 9)
            time.sleep(60)  # Until the death of the trial takes this process along.

    return then


@pytest.mark.parametrize("saves", [True, False])
def test_a_trial_that_is_tried_again_goes_on_with_its_run(run_trial: Run, saves: bool) -> None:
    def trial(config: dict[str, Any]) -> None:
        begun = Path(tune.get_context().get_trial_dir()) / "begun"
        then = {} if begun.exists() else {"then": kills(os.getpid(), 2)}
        begun.touch()
        fitted({**then, "saves": saves})

    result = run_trial(trial, failure_config={"max_failures": 1})
    # Whatever the trial had not heard when it was killed, it hears before the run goes on.
    assert [*result.metrics_dataframe["step"]] == [0, 1, 2, 3]
    last = result.metrics or {}
    assert last["start"] in ((2, 3) if saves else (0,))


def test_a_run_that_was_complete_tells_a_trial_that_is_tried_again(run_trial: Run) -> None:
    def trial(config: dict[str, Any]) -> None:
        fitted({"saves": False})
        if "ended" not in os.listdir(tune.get_context().get_trial_dir()):
            (Path(tune.get_context().get_trial_dir()) / "ended").touch()
            os._exit(1)

    result = run_trial(trial, failure_config={"max_failures": 1})
    assert [*result.metrics_dataframe["step"]] == [0, 1, 2, 3]


def by_number(config: dict[str, Any]) -> None:
    """Names its run as scripts for Ray do, where the numbers of trials do not come again."""
    name, place = f"train-{tune.get_context().get_trial_id()}", config["place"]
    DataParallelTrainer(
        lambda config: train.report({"loss": config["lr"]}),
        train_loop_config=config,
        run_config=RunConfig(name=name, storage_path=place, callbacks=[TuneReportCallback()]),
    ).fit()


def test_a_run_of_another_searchs_trial_is_not_taken_for_the_trials_own(tmp_path: Path) -> None:
    def losses(name: str, rates: list[float]) -> ResultGrid:
        return Tuner(
            by_number,
            param_space={"lr": grid_search(rates), "place": str(tmp_path / "inner")},
            run_config=SearchRunConfig(name=name, storage_path=tmp_path, failure_config={"max_failures": 1}),
        ).fit()

    assert [(result.metrics or {})["loss"] for result in losses("first", [0.1, 0.2])] == [0.1, 0.2]
    again = losses("second", [0.3])
    assert again[0].metrics is None, "reports of the first search were passed on"
    assert "was made for something else" in str(again.errors[0])
    assert "get_experiment_name" in str(again.errors[0])


def test_reports_that_restarted_workers_make_again_are_passed_on_once(run_trial: Run) -> None:
    def dies(step: int, start: int) -> None:
        if step == 2 and not Path("died").exists():
            Path("died").touch()
            os._exit(1)

    def trial(config: dict[str, Any]) -> None:
        os.chdir(tune.get_context().get_trial_dir())
        fitted({"then": dies, "saves": False}, failure_config=train.FailureConfig(max_failures=1))

    assert [*run_trial(trial).metrics_dataframe["step"]] == [0, 1, 2, 3]


def test_an_inner_run_in_the_trials_own_process(run_trial: Run) -> None:
    def trial(config: dict[str, Any]) -> None:
        fitted({}, num_workers=0)
        tune.report({"step": 4, "id": tune.get_context().get_trial_id()})

    result = run_trial(trial)
    assert [*result.metrics_dataframe["step"]] == [0, 1, 2, 3, 4]


def test_workers_of_the_run_share_what_the_trial_has(run_trial: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline._core.system.num_cores", lambda: 8)

    def reports() -> None:
        train.report({"threads": int(os.environ["OMP_NUM_THREADS"]), "gpus": os.environ["CUDA_VISIBLE_DEVICES"]})

    def trial(config: dict[str, Any]) -> None:
        run_config = RunConfig(name="inner", callbacks=[TuneReportCallback()])
        import paceline._core.system

        paceline._core.system.num_cores = lambda: 8
        DataParallelTrainer(reports, scaling_config=ScalingConfig(3), run_config=run_config).fit()

    assert run_trial(with_resources(trial, {"cpu": 6})).metrics == {"threads": 2, "gpus": ""}


def test_an_inner_run_cannot_have_more_gpus_than_its_trial(run_trial: Run) -> None:
    def trial(config: dict[str, Any]) -> None:
        DataParallelTrainer(loop, scaling_config=ScalingConfig(1, use_gpu=True)).fit()

    with pytest.raises(TrainingFailedError, match=r"asks for 1 GPU\(s\).*no GPU"):
        run_trial(trial)


def test_an_error_of_the_run_is_the_trials(run_trial: Run) -> None:
    def fails(step: int, start: int) -> None:
        raise ValueError("of the inner run")

    with pytest.raises(TrainingFailedError, match="of the inner run"):
        run_trial(lambda config: fitted({"then": fails}) and None)


def test_a_report_that_the_trial_refuses_ends_the_run(run_trial: Run) -> None:
    def unsavable(config: dict[str, Any]) -> None:
        callback = TuneReportCallback()
        callback._context.report = lambda *_: 1 / 0  # type: ignore[assignment, method-assign]
        fitted({"to": 1000}, callbacks=[callback])

    with pytest.raises(TrainingFailedError, match="TrialReportError: report 0: division by zero"):
        run_trial(unsavable)


def test_the_callback_belongs_into_a_trial() -> None:
    assert ray_train.TuneReportCallback is TuneReportCallback
    with pytest.raises(RuntimeError, match="TuneReportCallback` cannot be used outside of a trial"):
        TuneReportCallback()


def test_the_process_that_inner_workers_fork_from_goes_with_the_trial(run_trial: Run) -> None:
    """It is a fork of the one that the trial's worker was forked from, and knows what that has imported."""

    def trial(config: dict[str, Any]) -> None:
        parents = DataParallelTrainer(lambda: os.getppid(), run_config=RunConfig(name="inner")).fit()
        assert parents.return_value == shared_zygote().pid
        assert psutil.Process(shared_zygote().pid).ppid() == os.getppid()
        tune.report({"zygote": os.getppid(), "inner": shared_zygote().pid})

    metrics = run_trial(trial).metrics or {}
    zygote = psutil.Process(shared_zygote().pid)
    # Itself, or its heir, once that has imported more.
    assert metrics["zygote"] in [zygote.pid, *(child.pid for child in zygote.children())]
    assert still_running(_with_pid(metrics["inner"]), within_s=5) == []


def _with_pid(pid: int) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid)]
    except psutil.NoSuchProcess:
        return []


KILLED = """
import os, signal, subprocess, sys, time
from paceline import train
from paceline._engine.local.launch import shared_zygote
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig
from paceline.tune import config, session as tune
from paceline.tune.integration.train import TuneReportCallback
from paceline.tune.trainables.plans import planned

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
    planned(trial).trainer({"driver": os.getpid(), "who": sys.argv[1]}, run_config, None).fit()
"""


@pytest.mark.parametrize("who", ["driver", "trial"])
def test_a_kill_leaves_no_process_of_an_inner_run(
    run_script: Callable[..., CompletedProcess[str]],
    processes_in: Callable[[Path], list[psutil.Process]],
    tmp_path: Path,
    who: str,
) -> None:
    ended = run_script(KILLED, who)
    assert ended.returncode == (-9 if who == "driver" else 1), ended.stderr
    assert still_running(processes_in(tmp_path), within_s=5) == []
