"""Functions as trials, and what a trial may call."""

import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline import train
from paceline.train import Result
from paceline.tune import session as tune
from paceline.tune.config import CheckpointConfig
from paceline.tune.trainables.plans import planned
from paceline.tune.trainables.trainable import Trainable
from paceline.tune.trainables.wrapped import with_parameters, with_resources

Run = Callable[..., Result]


def test_a_function_reports_what_it_makes_of_its_config(run_trial: Run) -> None:
    def train(config: dict[str, Any]) -> None:
        for step in range(3):
            tune.report({"score": config["a"] * step})

    result = run_trial(train, {"a": 2})
    assert result.metrics == {"score": 4}
    assert [*result.metrics_dataframe["score"]] == [0, 2, 4]


def test_a_dict_that_is_returned_is_the_result(run_trial: Run) -> None:
    assert run_trial(lambda config: {"score": config["a"]}, {"a": 5}).metrics == {"score": 5}


def test_a_dict_that_is_returned_after_reports_is_no_report(run_trial: Run) -> None:
    def train(config: dict[str, Any]) -> dict[str, int]:
        tune.report({"score": 1})
        return {"score": 2}

    result = run_trial(train)
    assert (result.metrics, result.return_value) == ({"score": 1}, {"score": 2})


def test_what_a_function_yields_is_reported(run_trial: Run) -> None:
    def train(config: dict[str, Any]) -> Iterator[dict[str, int]]:
        for step in range(3):
            yield {"score": step}

    result = run_trial(train)
    assert [*result.metrics_dataframe["score"]] == [0, 1, 2]


def test_partials_methods_and_objects_are_functions(run_trial: Run) -> None:
    class Trains:
        def __call__(self, config: dict[str, Any]) -> dict[str, int]:
            return {"score": 1}

        def method(self, config: dict[str, Any]) -> dict[str, int]:
            return {"score": 2}

    def of_two(offset: int, config: dict[str, Any]) -> dict[str, int]:
        return {"score": offset}

    found = [
        run_trial(trainable, number=number).metrics
        for number, trainable in enumerate([Trains(), Trains().method, functools.partial(of_two, 3)])
    ]
    assert found == [{"score": 1}, {"score": 2}, {"score": 3}]


def test_a_trial_knows_which_it_is(run_trial: Run, tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> dict[str, Any]:
        context = tune.get_context()
        return {
            "id": context.get_trial_id(),
            "name": context.get_trial_name(),
            "dir": context.get_trial_dir(),
            "experiment": context.get_experiment_name(),
            "CPU": context.get_trial_resources()["CPU"],
            "together": context.get_trial_resources().required_resources,
            "bundles": context.get_trial_resources().bundles,
        }

    metrics = run_trial(with_resources(train, {"cpu": 3}), number=12).metrics
    assert metrics == {
        "id": "00012",
        "name": "trial_00012",
        "dir": str(tmp_path / "search" / "trial_00012"),
        "experiment": "search",
        "CPU": 3.0,
        "together": {"CPU": 3.0, "GPU": 0.0},
        "bundles": [{"CPU": 3.0, "GPU": 0.0}],
    }


def test_a_later_life_is_the_same_trial(tmp_path: Path) -> None:
    plan = planned(lambda config: {"id": tune.get_context().get_trial_id()})
    run_config = train.RunConfig(name="trial_00012-2", storage_path=tmp_path)
    assert plan.trainer({}, run_config, None).fit().metrics == {"id": "00012"}


def test_a_trial_that_is_tried_again_goes_on_from_its_checkpoint(run_trial: Run) -> None:
    def train(config: dict[str, Any]) -> None:
        checkpoint = tune.get_checkpoint()
        start = checkpoint.to_dict()["step"] if checkpoint is not None else 0
        for step in range(start, 4):
            tune.report({"step": step, "start": start}, checkpoint=tune.Checkpoint.from_dict({"step": step + 1}))
            if step == 1 and start == 0:
                os._exit(3)

    result = run_trial(train, failure_config={"max_failures": 1})
    assert result.metrics == {"step": 3, "start": 2}
    assert [*result.metrics_dataframe["step"]] == [0, 1, 2, 3]


def test_a_trial_begins_from_the_checkpoint_that_it_is_given(run_trial: Run, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "n").write_text("41")

    def train(config: dict[str, Any]) -> dict[str, int]:
        checkpoint = tune.get_checkpoint()
        assert checkpoint is not None
        with checkpoint.as_directory() as directory:
            return {"n": int((Path(directory) / "n").read_text()) + 1}

    assert run_trial(train, initial=tune.Checkpoint(str(tmp_path / "given"))).metrics == {"n": 42}


def test_a_function_travels_as_it_is_when_the_plan_is_made(of_trial: Callable[..., Any]) -> None:
    scale = [1]
    plan = planned(lambda config: {"scale": scale[0]})
    scale[0] = 2
    assert plan.trainer({}, of_trial(), None).fit().metrics == {"scale": 1}


@pytest.mark.parametrize("call", [lambda: tune.report({"a": 1}), tune.get_checkpoint, tune.get_context])
def test_outside_of_a_trial_the_functions_say_so(call: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match="cannot be used outside of a trial"):
        call()


def test_in_another_run_they_say_that_it_is_no_trial(tmp_path: Path) -> None:
    run_config = train.RunConfig(name="run", storage_path=tmp_path)
    trainer = train.DataParallelTrainer(lambda: tune.report({"a": 1}), run_config=run_config)
    with pytest.raises(train.TrainingFailedError, match="cannot be used in the run run, which is not a trial"):
        trainer.fit()


def no_argument() -> None: ...
def two_arguments(config: Any, data: Any) -> None: ...
def needs_keyword(config: Any, *, data: Any) -> None: ...


class NotTrainable:
    pass


class NoStep(Trainable):
    pass


@pytest.mark.parametrize(
    ("trainable", "told"),
    [
        (
            no_argument,
            r"no_argument takes no argument for the trial's configuration\n\nhint: def no_argument\(config\)",
        ),
        (
            two_arguments,
            r"needs data beside the trial's configuration\n\nhint: tune.with_parameters\(two_arguments, da",
        ),
        (needs_keyword, "needs data beside the trial's configuration"),
        (None, "trainable=None is nothing that a trial could run"),
        ("train", "trainable='train' is nothing that a trial could run"),
        (NotTrainable, "NotTrainable'> is nothing that a trial could run"),
        (Trainable, "Trainable'> is nothing that a trial could run"),
        (NoStep, r"NoStep does not implement step\(\)"),
        (train.DataParallelTrainer, "DataParallelTrainer is a class of trainers"),
    ],
)
def test_what_cannot_be_run_is_refused_at_once(trainable: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        planned(trainable)


def test_what_does_not_pickle_is_named() -> None:
    lock = threading.Lock()

    def trial(config: dict[str, Any]) -> None:
        lock.acquire()

    with pytest.raises(TypeError, match=r"lock.*cannot be sent to the workers.*\n\nhint: .* inside trial"):
        planned(trial)


@pytest.mark.parametrize("arguments", [{"checkpoint_frequency": 2}, {"checkpoint_at_end": True}])
def test_a_function_makes_its_checkpoints_itself(of_trial: Callable[..., Any], arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is for subclasses of tune.Trainable, and no_op is a function"):
        planned(no_op).check(of_trial(checkpoint_config=CheckpointConfig(**arguments)))


def no_op(config: Any) -> None: ...


def test_trials_cannot_be_detached(of_trial: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="detached=True"):
        planned(no_op).check(of_trial(engine="ray", detached=True))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: with_parameters(no_op), "was given no objects"),
        (lambda: with_parameters(no_op, data=1), "no_op takes no argument 'data' beside its config; it takes no fur"),
        (lambda: with_parameters(two_arguments, dato=1), "takes no argument 'dato' beside its config; it takes data"),
        (lambda: with_parameters(two_arguments, config=1), "takes no argument 'config' beside its config"),
        (lambda: with_parameters(with_parameters(two_arguments, data=1), data=2), "before: give all objects at once"),
        (lambda: with_parameters(3, data=1), "with_parameters is for functions and subclasses of tune.Trainable"),
        (lambda: with_parameters(NotTrainable, data=1), "with_parameters is for functions and subclasses"),
        (lambda: with_resources("train", {"cpu": 1}), "with_resources is for functions and subclasses"),
        (
            lambda: with_resources(train.DataParallelTrainer(no_argument), {"cpu": 1}),
            "not for a DataParallelTrainer\n\nhint: give the trainer a scaling_config",
        ),
        (
            lambda: with_parameters(train.DataParallelTrainer(no_argument), data=1),
            "not for a DataParallelTrainer\n\nhint: give the trainer its objects in train_loop_config",
        ),
    ],
)
def test_wrong_use_of_wrappers_is_refused(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()


@pytest.mark.parametrize(("num_gpus", "visible"), [(0, ""), (0.5, "0"), (2, "0,1")])
def test_gpus_of_a_trial_reach_it_as_cuda_devices(
    run_trial: Run, monkeypatch: pytest.MonkeyPatch, num_gpus: float, visible: str
) -> None:
    # What is given to whom is decided here; no GPU is touched.
    monkeypatch.setattr("paceline._engine.local.devices._num_gpus", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def trial(config: dict[str, Any]) -> dict[str, Any]:
        return {"visible": os.environ["CUDA_VISIBLE_DEVICES"], "GPU": tune.get_context().get_trial_resources()["GPU"]}

    metrics = run_trial(with_resources(trial, {"cpu": 1, "gpu": num_gpus})).metrics
    assert metrics == {"visible": visible, "GPU": float(len(visible.replace(",", "")))}


def test_trials_in_many_threads_do_not_mix(of_trial: Callable[..., Any]) -> None:
    def trial(config: dict[str, Any]) -> None:
        for step in range(3):
            saved = tune.Checkpoint.from_dict({"step": step})
            tune.report({"score": config["x"] + step, "id": tune.get_context().get_trial_id()}, checkpoint=saved)

    plan = planned(trial)
    found: dict[int, Any] = {}

    def drive(first: int) -> None:
        for number in (first, first + 1):
            found[number] = plan.trainer({"x": number}, of_trial(number), None).fit().metrics

    threads = [threading.Thread(target=drive, args=(first,)) for first in range(0, 12, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: {"score": number + 2, "id": f"{number:05d}"} for number in range(12)}
