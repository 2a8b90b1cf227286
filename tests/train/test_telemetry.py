"""What a run's journal tells for those who look at it: what ranks used, where their time went, what was asked."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import paceline.data
from paceline import train
from paceline._control import journal, vitals
from paceline._control.events import Described, Measured
from paceline._engine.messages import RankUse
from paceline.train import (
    Checkpoint,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    Trainer,
    TrainingFailedError,
    ValidationConfig,
)
from paceline.train.described import _code
from paceline.train.repository import repository_of


def fit(path, function, num_workers=1, *, config=None, max_failures=0, **arguments):
    return DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers),
        run_config=RunConfig(name="run", storage_path=path, failure_config=FailureConfig(max_failures)),
        **arguments,
    ).fit()


def measured(path) -> list[Measured]:
    """All measurements of the run; what holds of every one of them is looked at here."""
    found = [event for event in journal.read(path / "run" / "journal.jsonl") if isinstance(event, Measured)]
    for use in (use for each in found for use in each.ranks):
        assert spent(use) <= use.wall_s
        assert min(use.setup_s, use.data_s, use.report_s, use.checkpoint_s, use.cpu_s) >= 0
    return found


def spent(use: RankUse) -> float:
    return use.setup_s + use.data_s + use.report_s + use.checkpoint_s


def own(use: RankUse) -> float:
    return use.wall_s - spent(use)


def last(path, rank=0) -> RankUse:
    return [use for each in measured(path) for use in each.ranks if use.rank == rank][-1]


def described(path) -> list[dict]:
    events = journal.read(path / "run" / "journal.jsonl")
    return [json.loads(bytes(event.about)) for event in events if isinstance(event, Described)]


def await_measurements(number):
    """In a worker: go on once its own journal tells so often what all ranks use."""
    book = Path(train.get_context().get_trial_dir()) / "journal.jsonl"
    while book.read_text().count('"type":"Measured"') < number:
        time.sleep(0.01)


@pytest.fixture
def often(monkeypatch):
    """Ranks are asked every few moments."""
    monkeypatch.setattr(vitals, "EVERY_S", 0.05)
    monkeypatch.setattr(vitals, "PER_RANK_S", 0.0)


def test_every_rank_of_a_run_is_measured_while_it_runs_and_at_its_end(tmp_path, often):
    def function():
        train.report({"loss": 1.0})
        await_measurements(3)
        train.report({"loss": 0.5})

    fit(tmp_path, function, 2)
    found = measured(tmp_path)
    assert len(found) >= 4
    for rank in (0, 1):
        uses = [use for each in found for use in each.ranks if use.rank == rank]
        assert len(uses) >= 3
        assert [use.wall_s for use in uses] == sorted(use.wall_s for use in uses)
        assert all(use.rss_bytes > 5_000_000 and use.host and use.device == "cpu" for use in uses)
        assert len({use.pid for use in uses}) == 1
        assert uses[-1].num_reports == 2
    assert last(tmp_path, 0).pid != last(tmp_path, 1).pid
    assert [each.at for each in found] == sorted(each.at for each in found)


@pytest.mark.parametrize("num_workers", [1, 0])
def test_time_goes_to_what_it_was_spent_on(tmp_path, num_workers):
    """Half a second each: in the user's own code, in a save, and waiting for rows."""

    def uploaded(checkpoint, name):
        time.sleep(0.5)
        target = Path(train.get_context().get_trial_dir()) / name
        os.rename(checkpoint.path, target)
        return Checkpoint(target)

    def slow(row):
        time.sleep(0.05)
        return row

    def function():
        time.sleep(0.5)
        for _ in train.get_dataset_shard("train").iter_rows():
            pass
        (tmp_path / "files").mkdir()
        train.report({"loss": 1.0}, checkpoint=Checkpoint(tmp_path / "files"), checkpoint_upload_fn=uploaded)

    fit(tmp_path, function, num_workers, datasets={"train": paceline.data.range(10, override_num_blocks=1).map(slow)})
    use = last(tmp_path)
    assert use.data_s >= 0.5
    assert use.checkpoint_s >= 0.5
    assert 0.5 <= own(use) < use.wall_s - 1.0
    stages = [stage for each in measured(tmp_path) for stage in each.stages]
    assert {(stage.dataset, stage.num_rows) for stage in stages if stage.limits} == {("train", 10)}
    assert measured(tmp_path)[-1].consumers_wait


def test_a_killed_worker_loses_its_last_measurement_and_no_other(tmp_path, often):
    def function():
        if train.get_context().get_world_rank() == 1 and not (tmp_path / "killed").exists():
            await_measurements(2)
            (tmp_path / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        train.report({"loss": 1.0})

    fit(tmp_path, function, 2, max_failures=1)
    seen = {(each.attempt, use.rank, use.num_reports) for each in measured(tmp_path) for use in each.ranks}
    assert (1, 1, 0) in seen
    assert {(2, 0, 1), (2, 1, 1)} <= seen


def test_a_function_that_fails_has_used_what_it_used(tmp_path):
    def function():
        time.sleep(0.2)
        raise ValueError("no")

    with pytest.raises(TrainingFailedError, match="no"):
        fit(tmp_path, function)
    assert own(last(tmp_path)) >= 0.2


def test_validations_are_no_ranks(tmp_path):
    def function():
        train.report({"loss": 1.0}, checkpoint=Checkpoint.from_dict({}), validation=True)
        train.get_all_reported_checkpoints()

    fit(tmp_path, function, validation_config=ValidationConfig(lambda checkpoint: {"pid": os.getpid()}))
    pids = {use.pid for each in measured(tmp_path) for use in each.ranks}
    assert len(pids) == 1


def test_to_stand_by_is_no_work_of_the_users_code(tmp_path):
    with Trainer(num_workers=1, logdir=tmp_path / "run") as trainer:
        trainer.run(lambda: time.sleep(0.2))
        time.sleep(0.5)  # what is told of it is the subject
        trainer.run(lambda: time.sleep(0.2))
    use = last(tmp_path)
    assert use.setup_s >= 0.5
    assert 0.4 <= own(use) <= use.wall_s - 0.5


# What was asked


def test_a_run_is_described_with_what_it_was_given_and_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("UNTOLD", "hunter2")
    config = {"lr": 0.1, "model": {"width": 3}, "path": tmp_path, "hf_token": "hunter2"}
    fit(
        tmp_path,
        lambda config: None,
        2,
        config=config,
        datasets={"train": paceline.data.range(10).map(lambda row: row)},
    )
    (about,) = described(tmp_path)
    assert about["config"] == {"lr": 0.1, "model": {"width": 3}, "path": str(tmp_path), "hf_token": "***"}
    assert about["scaling"]["num_workers"] == 2
    assert about["run"]["name"] == "run"
    assert about["run"]["failure_config"]["max_failures"] == 0
    assert about["backend"] == {"name": "BackendConfig"}
    assert about["datasets"]["train"]["plan"].splitlines()[-1].strip() == "range(10)"
    environment = about["environment"]
    assert environment["host"]
    assert environment["packages"]["numpy"] == __import__("numpy").__version__
    assert environment["packages"]["paceline"] == "0.1.0"
    assert environment["variables"] == {"OMP_NUM_THREADS": "3"} | {
        name: value for name, value in os.environ.items() if name.startswith("PACELINE_")
    }
    code = about["code"]
    assert code["function"].endswith(
        "test_a_run_is_described_with_what_it_was_given_and_without_secrets.<locals>.<lambda>"
    )
    assert any(Path(__file__).read_text() == text for text in code["sources"].values())
    assert "hunter2" not in json.dumps({**about, "code": {**code, "sources": {}}})


def test_the_same_description_is_not_written_again_and_another_one_is(tmp_path):
    def function(config):
        if not (tmp_path / "again").exists():
            (tmp_path / "again").touch()
            raise ValueError("once")
        if config["lr"] == 0.1 and not (tmp_path / "once more").exists():
            (tmp_path / "once more").touch()
            raise ValueError("twice")

    for lr in (0.1, 0.1):
        with pytest.raises(TrainingFailedError):
            fit(tmp_path, function, config={"lr": lr})
    assert [about["config"] for about in described(tmp_path)] == [{"lr": 0.1}]
    fit(tmp_path, function, config={"lr": 0.2})
    assert [about["config"] for about in described(tmp_path)] == [{"lr": 0.1}, {"lr": 0.2}]


def test_files_that_are_too_large_are_left_out():
    assert _code(fit, 1_000_000)["sources"] != {}
    assert _code(fit, 100)["sources"] == {}


def git(path, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", *who, *arguments], cwd=path, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_commit_branch_and_changes_are_those_that_git_tells(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.train.repository._KEPT_S", 0.0)
    for name in ("GIT_DIR", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "code"
    (root / "deep").mkdir(parents=True)
    git(root, "init", "-b", "trunk")
    assert repository_of(root) == {"commit": "", "branch": "trunk", "dirty": False}
    (root / "deep" / "train.py").write_text("1")
    git(root, "add", ".")
    git(root, "commit", "-m", "first")
    commit = git(root, "rev-parse", "HEAD")
    assert repository_of(root / "deep") == {"commit": commit, "branch": "trunk", "dirty": False}
    (root / "deep" / "train.py").write_text("2")
    assert repository_of(root) == {"commit": commit, "branch": "trunk", "dirty": True}
    git(root, "pack-refs", "--all")
    assert repository_of(root) == {"commit": commit, "branch": "trunk", "dirty": True}
    git(root, "worktree", "add", "-b", "other/one", str(tmp_path / "beside"))
    assert repository_of(tmp_path / "beside") == {"commit": commit, "branch": "other/one", "dirty": False}
    git(tmp_path / "beside", "checkout", "--detach")
    assert repository_of(tmp_path / "beside") == {"commit": commit, "branch": None, "dirty": False}


def test_what_is_in_no_repository_or_in_a_broken_one_has_none(tmp_path):
    assert repository_of(tmp_path) is None or not (tmp_path / ".git").exists()
    (tmp_path / ".git").write_text("gitdir: nowhere")
    assert repository_of(tmp_path) is None
