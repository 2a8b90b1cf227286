"""Subclasses of `Trainable` as trials."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.train import Result, TrainingFailedError
from paceline.tune.config import CheckpointConfig
from paceline.tune.trainables.plans import planned
from paceline.tune.trainables.resources import PlacementGroupFactory
from paceline.tune.trainables.trainable import Trainable
from paceline.tune.trainables.wrapped import with_parameters, with_resources

Run = Callable[..., Result]


class Counts(Trainable):
    """Counts to `config["to"]`, and keeps its count in a dict."""

    def setup(self, config: dict[str, Any]) -> None:
        self.count = 0

    def step(self) -> dict[str, Any]:
        self.count += 1
        return {"count": self.count, "iteration": self.iteration, "done": self.count >= self.config["to"]}

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        return {"count": self.count, "array": np.arange(self.count)}

    def load_checkpoint(self, checkpoint: Any) -> None:
        assert len(checkpoint["array"]) == checkpoint["count"]
        self.count = checkpoint["count"]


class CountsInFile(Counts):
    """The same, in a file; its path below the directory comes back."""

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        path = Path(checkpoint_dir) / "deep" / "count"
        path.parent.mkdir()
        path.write_text(str(self.count))
        return path if self.config.get("path") else None

    def load_checkpoint(self, checkpoint: Any) -> None:
        path = Path(checkpoint) if self.config.get("path") else Path(checkpoint) / "deep" / "count"
        self.count = int(path.read_text())


def names(result: Result) -> list[str]:
    return [Path(checkpoint.path).name for checkpoint, _ in result.best_checkpoints or []]


def test_each_step_is_a_report_until_one_is_done(run_trial: Run) -> None:
    result = run_trial(Counts, {"to": 3})
    assert result.metrics == {"count": 3, "iteration": 2, "done": True}
    assert [*result.metrics_dataframe["count"]] == [1, 2, 3]
    assert names(result) == []


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({"checkpoint_frequency": 2}, ["checkpoint_000002", "checkpoint_000004"]),
        ({"checkpoint_at_end": True}, ["checkpoint_000005"]),
        (
            {"checkpoint_frequency": 2, "checkpoint_at_end": True},
            ["checkpoint_000002", "checkpoint_000004", "checkpoint_000005"],
        ),
    ],
)
def test_checkpoints_come_as_often_as_was_asked_for(run_trial: Run, config: dict[str, Any], kept: list[str]) -> None:
    assert names(run_trial(Counts, {"to": 5}, checkpoint_config=CheckpointConfig(**config))) == kept


def test_the_step_at_which_a_search_stops_is_the_last(run_trial: Run) -> None:
    """Alone it goes on: it is the search that stops trials."""
    config = CheckpointConfig(checkpoint_at_end=True, num_to_keep=1)
    result = run_trial(Counts, {"to": 4}, checkpoint_config=config, stop={"training_iteration": 3})
    assert [*result.metrics_dataframe["count"]] == [1, 2, 3, 4]
    assert names(result) == ["checkpoint_000004"]
    stopped = run_trial(
        Counts, {"to": 9}, 1, checkpoint_config=CheckpointConfig(checkpoint_at_end=True), stop={"count": 8}
    )
    assert names(stopped) == ["checkpoint_000008", "checkpoint_000009"]


def test_a_result_may_ask_for_a_checkpoint(run_trial: Run) -> None:
    class Asks(Counts):
        def step(self) -> dict[str, Any]:
            return {**super().step(), "should_checkpoint": self.count == 2}

    result = run_trial(Asks, {"to": 3})
    assert names(result) == ["checkpoint_000002"]
    assert "should_checkpoint" not in (result.metrics or {})


class Dies(Counts):
    def step(self) -> dict[str, Any]:
        if self.count == 3 and "started" not in os.listdir(self.logdir):
            (Path(self.logdir) / "started").touch()
            os._exit(1)
        return super().step()


class DiesWithFile(Dies, CountsInFile):
    pass


@pytest.mark.parametrize("kind", [Dies, DiesWithFile])
@pytest.mark.parametrize("path", [False, True])
def test_a_lost_trial_goes_on_from_its_checkpoint(run_trial: Run, kind: type[Trainable], path: bool) -> None:
    result = run_trial(
        kind,
        {"to": 5, "path": path},
        checkpoint_config=CheckpointConfig(checkpoint_frequency=2),
        failure_config={"max_failures": 1},
    )
    assert result.metrics == {"count": 5, "iteration": 4, "done": True}
    assert [*result.metrics_dataframe["iteration"]] == [0, 1, 2, 3, 4]


def test_a_trial_that_was_lost_after_its_last_checkpoint_makes_no_further_step(run_trial: Run) -> None:
    class DiesAtTheEnd(Counts):
        def cleanup(self) -> None:
            if "ended" not in os.listdir(self.logdir):
                (Path(self.logdir) / "ended").touch()
                os._exit(1)

    result = run_trial(
        DiesAtTheEnd,
        {"to": 2},
        checkpoint_config=CheckpointConfig(checkpoint_at_end=True),
        failure_config={"max_failures": 1},
    )
    assert [*result.metrics_dataframe["count"]] == [1, 2]


def test_a_clone_goes_on_from_the_checkpoint_it_is_given(run_trial: Run) -> None:
    first = run_trial(Counts, {"to": 2}, checkpoint_config=CheckpointConfig(checkpoint_at_end=True))
    second = run_trial(Counts, {"to": 4}, number=1, initial=first.checkpoint)
    assert [*second.metrics_dataframe["count"]] == [3, 4]
    assert [*second.metrics_dataframe["iteration"]] == [2, 3]


def test_what_a_trainable_knows_of_its_trial(run_trial: Run, tmp_path: Path) -> None:
    class Knows(Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.in_setup = self.trial_id

        def step(self) -> dict[str, Any]:
            return {
                "ids": [self.in_setup, self.trial_id, self.trial_name],
                "logdir": self.logdir,
                "config": self.get_config(),
                "done": True,
            }

        def cleanup(self) -> None:
            (Path(self.logdir) / "cleaned up").touch()

    metrics = run_trial(Knows, {"a": 1}, number=7).metrics or {}
    directory = tmp_path / "search" / "trial_00007"
    assert metrics["ids"] == ["00007", "00007", "trial_00007"]
    assert (metrics["logdir"], metrics["config"]) == (str(directory), {"a": 1})
    assert (directory / "cleaned up").exists()


def test_objects_come_to_setup(run_trial: Run) -> None:
    class Sums(Trainable):
        def setup(self, config: dict[str, Any], data: Any = None) -> None:
            self.data = data

        def step(self) -> dict[str, Any]:
            return {"sum": int(self.data.sum()), "writable": self.data.flags.writeable, "done": True}

    metrics = run_trial(with_parameters(Sums, data=np.arange(4))).metrics
    assert metrics == {"sum": 6, "writable": False, "done": True}
    with pytest.raises(ValueError, match=r"Sums.setup takes no argument 'date' beside its config; it takes data"):
        with_parameters(Sums, date=1)


def test_a_class_says_itself_what_it_needs() -> None:
    class Large(Counts):
        @classmethod
        def default_resource_request(cls, config: Any) -> PlacementGroupFactory:
            return PlacementGroupFactory([{"CPU": config["cpus"]}])

    assert planned(Large).needs({"cpus": 3}).bundles[0].num_cpus == 3
    assert planned(with_resources(Large, {"cpu": 2})).needs({"cpus": 3}).bundles[0].num_cpus == 2


def test_a_class_without_saves_cannot_be_asked_for_checkpoints(of_trial: Callable[..., Any]) -> None:
    class Forgets(Trainable):
        def step(self) -> dict[str, Any]:
            return {"done": True}

    with pytest.raises(ValueError, match=r"checkpoint_frequency=1.*Forgets does not implement save_checkpoint\(\)"):
        planned(Forgets).check(of_trial(checkpoint_config={"checkpoint_frequency": 1}))


class ReturnsList(Trainable):
    def step(self) -> Any:
        return [1]


class SavesElsewhere(Counts):
    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        return "/"


class SavesANumber(Counts):
    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        return 7


class SavesAnObject(Counts):
    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        return {"iterator": iter([1])}


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (ReturnsList, r"ReturnsList.step\(\) returned \[1\], which is not a dict"),
        (SavesElsewhere, "returned '/', which does not lie in the directory"),
        (SavesANumber, "returned 7, which is neither a dict, a path, nor None"),
        (SavesAnObject, "iterator"),
    ],
)
def test_wrong_answers_are_named(run_trial: Run, kind: type[Trainable], told: str) -> None:
    config = CheckpointConfig(checkpoint_frequency=0 if kind is ReturnsList else 1)
    with pytest.raises(TrainingFailedError, match=told):
        run_trial(kind, {"to": 2}, checkpoint_config=config)


@pytest.mark.parametrize("kind", [Counts, CountsInFile])
def test_a_trainable_can_be_tried_without_a_trial(tmp_path: Path, kind: type[Trainable]) -> None:
    first = kind({"to": 5})
    assert [first.train()["count"] for _ in range(2)] == [1, 2]
    second = kind({"to": 5})
    second.restore(first.save(tmp_path / "saved"))
    assert (second.train()["count"], second.training_iteration) == (3, 3)
