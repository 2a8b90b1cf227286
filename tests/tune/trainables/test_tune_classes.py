"""Subclasses of `Trainable` as trials."""

import os
from pathlib import Path

import numpy as np
import pytest

from paceline.train import TrainingFailedError
from paceline.tune.config import CheckpointConfig
from paceline.tune.trainables.resources import PlacementGroupFactory
from paceline.tune.trainables.trainable import Trainable
from paceline.tune.trainables.trainable_plans import make_trainable_plan
from paceline.tune.trainables.wrapping import with_parameters, with_resources


class Counts(Trainable):
    """Counts to `config["to"]`, and keeps its count in a dict."""

    def setup(self, config):
        self.count = 0

    def step(self):
        self.count += 1
        return {"count": self.count, "iteration": self.iteration, "done": self.count >= self.config["to"]}

    def save_checkpoint(self, checkpoint_dir):
        return {"count": self.count, "array": np.arange(self.count)}

    def load_checkpoint(self, checkpoint):
        assert len(checkpoint["array"]) == checkpoint["count"]
        self.count = checkpoint["count"]


class CountsInFile(Counts):
    """The same, in a file; its path below the directory comes back."""

    def save_checkpoint(self, checkpoint_dir):
        path = Path(checkpoint_dir) / "deep" / "count"
        path.parent.mkdir()
        path.write_text(str(self.count))
        return path if self.config.get("path") else None

    def load_checkpoint(self, checkpoint):
        path = Path(checkpoint) if self.config.get("path") else Path(checkpoint) / "deep" / "count"
        self.count = int(path.read_text())


def names(result):
    return [Path(checkpoint.path).name for checkpoint, _ in result.best_checkpoints or []]


@pytest.mark.parametrize(
    ("config", "stop", "kept"),
    [
        ({}, None, []),
        ({"checkpoint_frequency": 2, "checkpoint_at_end": True}, None, [2, 4, 5]),
        ({"checkpoint_at_end": True}, {"count": 3}, [3]),
    ],
)
def test_each_step_is_a_report_with_a_checkpoint_at_the_requested_frequency(run_trial, config, stop, kept):
    result = run_trial(Counts, {"to": 5}, checkpoint_config=CheckpointConfig(**config), stop=stop)
    last = 3 if stop else 5
    assert result.metrics == {"count": last, "iteration": last - 1, "done": last == 5}
    assert [*result.metrics_dataframe["count"]] == [*range(1, last + 1)]
    assert names(result) == [f"checkpoint_{count:06d}" for count in kept]


def test_a_clone_resumes_from_its_checkpoint_and_a_result_may_request_one(run_trial):
    first = run_trial(Counts, {"to": 2}, checkpoint_config=CheckpointConfig(checkpoint_at_end=True))
    second = run_trial(Counts, {"to": 4}, number=1, initial=first.checkpoint)
    assert [*second.metrics_dataframe["count"]] == [3, 4]
    assert [*second.metrics_dataframe["iteration"]] == [2, 3]

    class Asks(Counts):
        def step(self):
            return {**super().step(), "should_checkpoint": self.count == 2}

    result = run_trial(Asks, {"to": 3}, number=2)
    assert names(result) == ["checkpoint_000002"]
    assert "should_checkpoint" not in (result.metrics or {})


class Dies(Counts):
    def step(self):
        if self.count == 3 and "started" not in os.listdir(self.logdir):
            (Path(self.logdir) / "started").touch()
            os._exit(1)
        return super().step()


class DiesWithFile(Dies, CountsInFile):
    pass


@pytest.mark.parametrize(
    ("kind", "path"),
    [(Dies, False), *(pytest.param(DiesWithFile, path, marks=pytest.mark.slow) for path in (False, True))],
)
def test_a_lost_trial_resumes_from_its_checkpoint(run_trial, kind, path):
    result = run_trial(
        kind, {"to": 5, "path": path}, checkpoint_config={"checkpoint_frequency": 2}, failure_config={"max_failures": 1}
    )
    assert result.metrics == {"count": 5, "iteration": 4, "done": True}
    assert [*result.metrics_dataframe["iteration"]] == [0, 1, 2, 3, 4]


def test_a_trial_that_was_lost_after_its_last_checkpoint_makes_no_further_step(run_trial):
    class DiesAtTheEnd(Counts):
        def cleanup(self):
            if "ended" not in os.listdir(self.logdir):
                (Path(self.logdir) / "ended").touch()
                os._exit(1)

    result = run_trial(
        DiesAtTheEnd, {"to": 2}, checkpoint_config={"checkpoint_at_end": True}, failure_config={"max_failures": 1}
    )
    assert [*result.metrics_dataframe["count"]] == [1, 2]


def test_what_a_trainable_knows_of_its_trial(run_trial, tmp_path):
    class Knows(Trainable):
        def setup(self, config):
            self.in_setup = self.trial_id

        def step(self):
            ids = [self.in_setup, self.trial_id, self.trial_name]
            return {"ids": ids, "logdir": self.logdir, "config": self.get_config(), "done": True}

        def cleanup(self):
            (Path(self.logdir) / "cleaned up").touch()

    metrics = run_trial(Knows, {"a": 1}, number=7).metrics or {}
    directory = tmp_path / "search" / "trial_00007"
    assert metrics["ids"] == ["00007", "00007", "trial_00007"]
    assert (metrics["logdir"], metrics["config"]) == (str(directory), {"a": 1})
    assert (directory / "cleaned up").exists()


class Sums(Trainable):
    def setup(self, config, data=None):
        self.data = data

    def step(self):
        return {"sum": int(self.data.sum()), "writable": self.data.flags.writeable, "done": True}


class Large(Counts):
    @classmethod
    def default_resource_request(cls, config):
        return PlacementGroupFactory([{"CPU": config["cpus"]}])


def test_objects_come_to_setup_and_a_class_says_what_it_needs(run_trial, of_trial):
    metrics = run_trial(with_parameters(Sums, data=np.arange(4))).metrics
    assert metrics == {"sum": 6, "writable": False, "done": True}
    with pytest.raises(ValueError, match=r"argument 'date'; the arguments of Sums.setup besides config are"):
        with_parameters(Sums, date=1)
    with pytest.raises(ValueError, match=r"checkpoint_frequency=1.*Sums does not implement save_checkpoint\(\)"):
        make_trainable_plan(Sums).check(of_trial(checkpoint_config={"checkpoint_frequency": 1}))
    assert make_trainable_plan(Large).resolve_needs({"cpus": 3}).bundles[0].num_cpus == 3
    assert make_trainable_plan(with_resources(Large, {"cpu": 2})).resolve_needs({"cpus": 3}).bundles[0].num_cpus == 2


class ReturnsList(Trainable):
    def step(self):
        return [1]


class Saves(Counts):
    def save_checkpoint(self, checkpoint_dir):
        return {"path": "/", "number": 7, "object": {"iterator": iter([1])}}[self.config["what"]]


@pytest.mark.parametrize(
    ("kind", "what", "message"),
    [
        (ReturnsList, "", r"ReturnsList.step\(\) must return a dict of metrics, got \[1\]"),
        (Saves, "path", "must return a path inside .*, got '/'"),
        (Saves, "number", "must return a dict, a path or None, got 7"),
        (Saves, "object", "iterator"),
    ],
)
def test_wrong_answers_are_named(run_trial, kind, what, message):
    config = CheckpointConfig(checkpoint_frequency=0 if kind is ReturnsList else 1)
    with pytest.raises(TrainingFailedError, match=message):
        run_trial(kind, {"to": 2, "what": what}, checkpoint_config=config)


@pytest.mark.parametrize("kind", [Counts, CountsInFile])
def test_a_trainable_can_be_tried_without_a_trial(tmp_path, kind):
    first = kind({"to": 5})
    assert [first.train()["count"] for _ in range(2)] == [1, 2]
    second = kind({"to": 5})
    second.restore(first.save(tmp_path / "saved"))
    assert (second.train()["count"], second.training_iteration) == (3, 3)
