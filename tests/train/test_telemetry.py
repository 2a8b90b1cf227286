"""The notes in a run's journal: what ranks used, where their time went, what was asked for."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import paceline.data
from paceline import train
from paceline._control import journal, usage_collector
from paceline._control.events import RunDescribed, UsageMeasured
from paceline._core.masking import mask_source
from paceline._engine.messages import RankUsage
from paceline.train import Checkpoint, TrainingFailedError, ValidationConfig
from paceline.train.driver.run_metadata import _describe_code, read_git_state


def measured(path) -> list[UsageMeasured]:
    """All measurements of the run; what holds of every one of them is looked at here."""
    found = [event for event in journal.read_events(path / "run" / "journal.jsonl") if isinstance(event, UsageMeasured)]
    for use in (use for each in found for use in each.ranks):
        assert spent(use) <= use.wall_s
        assert min(use.setup_s, use.data_s, use.report_s, use.checkpoint_s, use.cpu_s) >= 0
    return found


def spent(use: RankUsage) -> float:
    return use.setup_s + use.data_s + use.report_s + use.checkpoint_s


def described(path, name="run") -> list[dict]:
    events = journal.read_events(path / name / "journal.jsonl")
    return [json.loads(bytes(event.about)) for event in events if isinstance(event, RunDescribed)]


def await_measurements(number):
    """In a worker: wait until the journal of its run has so many more measurements."""
    path = Path(train.get_context().get_trial_dir()) / "journal.jsonl"
    before = path.read_text().count('"type":"usage_measured"')
    while path.read_text().count('"type":"usage_measured"') < before + number:
        time.sleep(0.01)


@pytest.fixture
def often(monkeypatch):
    """Ranks are asked every few moments."""
    monkeypatch.setattr(usage_collector, "EVERY_S", 0.05)
    monkeypatch.setattr(usage_collector, "PER_RANK_S", 0.0)


def test_every_rank_is_measured_while_it_runs_and_at_its_end_unless_it_was_killed(tmp_path, fit, often):
    """A validation is no rank."""

    def function():
        train.report({"loss": 1.0}, checkpoint=Checkpoint.from_dict({}), validation=True)
        await_measurements(2)
        if train.get_context().get_world_rank() == 1 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        train.report({"loss": 0.5})

    fit(function, max_failures=1, validation_config=ValidationConfig(lambda checkpoint: {"pid": os.getpid()}))
    found = measured(tmp_path)
    assert [each.at for each in found] == sorted(each.at for each in found)
    last = {}
    for attempt, rank in ((1, 0), (1, 1), (2, 0), (2, 1)):
        uses = [use for each in found if each.attempt == attempt for use in each.ranks if use.rank == rank]
        assert [use.wall_s for use in uses] == sorted(use.wall_s for use in uses)
        assert all(use.rss_bytes > 5_000_000 and use.host and use.device == "cpu" for use in uses)
        assert len({use.pid for use in uses}) == 1
        last[attempt, rank] = uses[-1]
    assert [last[1, 1].num_reports, last[2, 0].num_reports, last[2, 1].num_reports] == [1, 3, 3]
    assert len({use.pid for use in last.values()}) == 4


@pytest.mark.parametrize("num_workers", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_time_goes_to_what_it_was_spent_on(tmp_path, fit, num_workers):
    """Half a second each: in the user's own code, in a save, and waiting for rows. The function fails in the end."""

    def upload(checkpoint, name):
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
        train.report({"loss": 1.0}, checkpoint=Checkpoint(tmp_path / "files"), checkpoint_upload_fn=upload)
        raise ValueError("no")

    datasets = {"train": paceline.data.range(10, override_num_blocks=1).map(slow)}
    with pytest.raises(TrainingFailedError, match="no") as failed:
        fit(function, num_workers, datasets=datasets)
    assert Path(failed.value.result.checkpoint.path).name == "checkpoint_000001", "which the user's function uploaded"
    use = measured(tmp_path)[-1].ranks[0]
    assert use.data_s >= 0.5
    assert use.checkpoint_s >= 0.5
    assert 0.5 <= use.wall_s - spent(use) < use.wall_s - 1.0
    stages = [stage for each in measured(tmp_path) for stage in each.stages]
    assert {(stage.dataset, stage.num_rows) for stage in stages if stage.limits} == {("train", 10)}
    assert measured(tmp_path)[-1].consumers_wait


def test_a_run_is_described_with_what_it_was_given_and_without_secrets(tmp_path, fit, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("UNTOLD", "hunter2")
    config = {"lr": 0.1, "model": {"width": 3}, "path": tmp_path, "hf_token": "hunter2"}
    fit(lambda config: None, config=config, datasets={"train": paceline.data.range(10).map(lambda row: row)})
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
    assert code["function"].endswith("and_without_secrets.<locals>.<lambda>")
    assert mask_source(Path(__file__).read_text()) in code["sources"].values()
    assert any('"hf_token": "***"' in text for text in code["sources"].values())
    fit(lambda config: None, config=config, name="secret", record_source=False)
    assert described(tmp_path, "secret")[0]["code"]["sources"] == {}
    assert "hunter2" not in json.dumps({**about, "code": {**code, "sources": {}}})
    assert _describe_code(git, 100)["sources"] == {}, "files that are too large are left out"


def git(path, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", *who, *arguments], cwd=path, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_commit_branch_and_changes_are_those_that_git_tells(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.train.driver.run_metadata._CACHE_S", 0.0)
    monkeypatch.delenv("GIT_DIR", raising=False)
    monkeypatch.delenv("GIT_WORK_TREE", raising=False)
    root = tmp_path / "code"
    (root / "deep").mkdir(parents=True)
    git(root, "init", "-b", "trunk")
    assert read_git_state(root) == {"commit": "", "branch": "trunk", "dirty": False}
    (root / "deep" / "train.py").write_text("1")
    git(root, "add", ".")
    git(root, "commit", "-m", "first")
    commit = git(root, "rev-parse", "HEAD")
    assert read_git_state(root / "deep") == {"commit": commit, "branch": "trunk", "dirty": False}
    (root / "deep" / "train.py").write_text("2")
    assert read_git_state(root) == {"commit": commit, "branch": "trunk", "dirty": True}
    git(root, "pack-refs", "--all")
    assert read_git_state(root)["commit"] == commit
    git(root, "worktree", "add", "-b", "other/one", str(tmp_path / "beside"))
    assert read_git_state(tmp_path / "beside") == {"commit": commit, "branch": "other/one", "dirty": False}
    git(tmp_path / "beside", "checkout", "--detach")
    assert read_git_state(tmp_path / "beside") == {"commit": commit, "branch": None, "dirty": False}
    (tmp_path / ".git").write_text("gitdir: nowhere")
    assert read_git_state(tmp_path) is None, "it is broken"
