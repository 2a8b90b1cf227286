"""Validation beside training: in its own process, one at a time, and whatever becomes of it the training goes on.

Where one process has to wait for another it opens a named pipe, which returns once the other has opened it too.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline import train
from paceline.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointConsistencyMode,
    CheckpointUploadMode,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    ValidationConfig,
    ValidationTaskConfig,
    WorkerGroupError,
)
from processes import still_running


@pytest.fixture
def fit(tmp_path):
    def fit(function, validate, num_workers=2, *, name="run", **run_config):
        if not isinstance(validate, ValidationConfig | None):
            validate = ValidationConfig(validate)
        return DataParallelTrainer(
            function,
            scaling_config=ScalingConfig(num_workers),
            run_config=RunConfig(name=name, storage_path=tmp_path / "runs", **run_config),
            validation_config=validate,
        ).fit()

    return fit


@pytest.fixture
def gate(tmp_path):
    """A place where one process waits for one other."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def passed(gate):
    gate.read_bytes()


def opened(gate):
    gate.write_bytes(b"")


def is_rank(rank):
    return train.get_context().get_world_rank() == rank


def reports(*values, validation=True, **about):
    for value in values:
        checkpoint = Checkpoint.from_dict({"value": value})
        train.report({"value": value}, checkpoint=checkpoint, validation=validation, **about)


def value_of(checkpoint):
    return checkpoint.to_dict()["value"]


def doubled(checkpoint):
    return {"doubled": 2 * value_of(checkpoint)}


def statuses(mode=CheckpointConsistencyMode.VALIDATED, timeout_s=None):
    return [(c.metrics, c.status.value) for c in train.get_all_reported_checkpoints(mode, timeout_s)]


def metrics_of(result):
    return [metrics for _, metrics in result.best_checkpoints]


# What comes of it


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_a_validation_returns_is_among_the_metrics_of_the_checkpoint(fit, num_workers):
    result = fit(lambda: reports(1, 2), doubled, num_workers)
    expected = [{"value": 1, "doubled": 2}, {"value": 2, "doubled": 4}]
    assert metrics_of(result) == expected
    assert metrics_of(Result.from_path(result.path)) == expected
    assert result.metrics == {"value": 2}, "what rank 0 reported, not what was found out about a checkpoint"
    result.checkpoint.verify()


def test_the_training_does_not_wait_for_it(fit, gate):
    """It goes on only once the training function is at its end."""

    def function():
        reports(1)
        reports(2, validation=False)
        if is_rank(0):
            opened(gate)
        return os.getpid()

    def validate(checkpoint):
        passed(gate)
        return {"pid": os.getpid()}

    result = fit(function, validate)
    (first, second) = metrics_of(result)
    assert first["pid"] not in (result.return_value, os.getpid())
    assert second == {"value": 2}


def test_there_is_one_at_a_time_in_the_order_of_commits(fit, tmp_path):
    def validate(checkpoint):
        (tmp_path / "busy").touch(exist_ok=False)
        with (tmp_path / "order").open("a") as file:
            print(value_of(checkpoint), file=file)
        (tmp_path / "busy").unlink()
        return {}

    def function():
        reports(1, 2, 3, 4, checkpoint_upload_mode=CheckpointUploadMode.ASYNC)

    fit(function, validate)
    assert (tmp_path / "order").read_text().split() == ["1", "2", "3", "4"]


def test_a_validation_decides_what_is_best_and_nothing_goes_before_its_score_is_known(fit, gate, tmp_path):
    def function():
        reports(0.9, 0.1, 0.2)
        if is_rank(0):
            there = sorted(path.name for path in (tmp_path / "runs" / "run").glob("checkpoint_*"))
            opened(gate)
            return there, [metrics["accuracy"] for metrics, _ in statuses()]
        return None

    def validate(checkpoint):
        accuracy = value_of(checkpoint)
        if accuracy == 0.9:
            passed(gate)
        return {"accuracy": accuracy}

    keep = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="accuracy")
    result = fit(function, validate, checkpoint_config=keep)
    there, told = result.return_value
    assert there == ["checkpoint_000001", "checkpoint_000002", "checkpoint_000003"]
    assert told == [0.2, 0.9]
    assert [metrics["accuracy"] for metrics in metrics_of(result)] == [0.2, 0.9], "the newest, and the best"
    left = sorted(path.name for path in Path(result.path).glob("checkpoint_*"))
    assert left == ["checkpoint_000001", "checkpoint_000003"]
    assert value_of(result.get_best_checkpoint("accuracy", "max")) == 0.9


def test_what_a_report_gives_goes_before_what_the_trainer_was_given(fit):
    def function():
        reports(1)
        reports(2, validation=ValidationTaskConfig({"split": "test", "limits": [float("inf"), 3]}))

    def validate(checkpoint, split, kind, limits=None):
        return {"split": split, "kind": kind, "limits": limits}

    defaults = ValidationTaskConfig({"split": "dev", "kind": object})
    result = fit(
        function, ValidationConfig(lambda c, **kw: validate(c, **kw | {"kind": kw["kind"].__name__}), defaults)
    )
    assert metrics_of(result) == [
        {"value": 1, "split": "dev", "kind": "object", "limits": None},
        {"value": 2, "split": "test", "kind": "object", "limits": [float("inf"), 3]},
    ]


def test_of_the_ranks_that_ask_the_lowest_says_how(fit):
    def function():
        rank = train.get_context().get_world_rank()
        reports(1, validation=ValidationTaskConfig({"rank": rank}) if rank else False)

    result = fit(function, lambda checkpoint, rank: {"asked_by": rank}, 3)
    assert metrics_of(result) == [{"value": 1, "asked_by": 1}]


def test_its_output_is_in_a_log_of_its_own(fit, capfd):
    result = fit(lambda: reports(1), lambda checkpoint: print("from the validation") or {})
    assert (result.log_dir / "validation" / "checkpoint_000001.log").read_text() == "from the validation\n"
    assert "from the validation" not in capfd.readouterr().out


# What does not come of it


def raises(checkpoint):
    raise ValueError("not today")


def is_killed(checkpoint):
    os.kill(os.getpid(), signal.SIGKILL)


def reports_itself(checkpoint):
    train.report({"value": 1})
    return {}


def takes_nothing():
    return {}


FAILURES = [
    (raises, "ValueError: not today, at tests/train/test_validation.py:"),
    (is_killed, "killed by SIGKILL"),
    (lambda checkpoint: os._exit(0), "exited with code 0 before its function returned"),
    (lambda checkpoint: sys.exit(0), "SystemExit: 0"),
    (lambda checkpoint: [1], "TypeError: the validation returned [1], which is not a dict of metrics"),
    (lambda checkpoint: None, "TypeError: the validation returned None, which is not a dict"),
    (lambda checkpoint: {"x": {"y": object()}}, "TypeError: the validation's metrics['x']['y'] is an object"),
    (takes_nothing, "TypeError: takes_nothing() takes 0 positional arguments"),
    (reports_itself, "RuntimeError: `report` cannot be used outside of a Paceline training function"),
]


def test_one_that_fails_leaves_the_metrics_and_the_training_alone(fit, capfd, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])

    def function():
        reports(*range(len(FAILURES)))
        reports(100)
        return statuses()

    def validate(checkpoint):
        value = value_of(checkpoint)
        return FAILURES[value][0](checkpoint) if value < 100 else {"ok": 1}

    result = fit(function, validate)
    failed = [[{"value": value}, "VALIDATION_FAILED"] for value in range(len(FAILURES))]
    assert result.return_value == [*failed, [{"value": 100, "ok": 1}, "VALIDATED"]]
    assert metrics_of(result)[:-1] == [metrics for metrics, _ in failed]
    lines = capfd.readouterr().err.splitlines()
    told = [line for line in lines if "could not be validated" in line]
    for number, (line, (_, said)) in enumerate(zip(told, FAILURES, strict=True), start=1):
        name = f"checkpoint_{number:06d}"
        assert line.startswith(f"paceline: {name} could not be validated: {said}")
        assert line.endswith(f". See {result.log_dir}/validation/{name}.log")
    assert "run run is complete after 10 reports" in lines[-1]


@pytest.mark.parametrize("given_by", ["trainer", "report"])
def test_one_that_takes_too_long_is_ended_and_the_next_has_its_turn(fit, capfd, given_by):
    limit = ValidationTaskConfig(timeout_s=0.3)

    def function():
        reports(1, validation=True if given_by == "trainer" else limit)
        reports(2, validation=ValidationTaskConfig(timeout_s=100))
        return statuses()

    def validate(checkpoint):
        if value_of(checkpoint) == 1:
            while True:
                signal.pause()
        return {"ok": 1}

    task = limit if given_by == "trainer" else None
    result = fit(function, ValidationConfig(validate, task))
    assert result.return_value == [[{"value": 1}, "VALIDATION_TIMEOUT"], [{"value": 2, "ok": 1}, "VALIDATED"]]
    assert "checkpoint_000001 could not be validated: it took longer than 0.3 s and was ended" in capfd.readouterr().err


def test_one_that_returned_and_does_not_leave_is_ended_when_it_has_to(fit, monkeypatch):
    monkeypatch.setattr("paceline._control.validations.LEAVE_S", 0.2)

    def validate(checkpoint):
        import threading

        threading.Thread(target=signal.pause).start()
        return {"ok": 1}

    assert metrics_of(fit(lambda: reports(1), validate)) == [{"value": 1, "ok": 1}]


@pytest.mark.parametrize(
    ("options", "failure", "num_tries", "status"),
    [
        ({"max_retries": 2}, is_killed, 3, "VALIDATED"),
        ({"retry_exceptions": [KeyError, ValueError]}, raises, 3, "VALIDATED"),
        ({"retry_exceptions": [KeyError]}, raises, 1, "VALIDATION_FAILED"),
    ],
)
def test_it_is_tried_again_as_often_as_asked_for(fit, tmp_path, options, failure, num_tries, status):
    def validate(checkpoint):
        with (tmp_path / "tries").open("a") as file:
            file.write("x")
        if (tmp_path / "tries").stat().st_size < 3:
            failure(checkpoint)
        return {}

    def function():
        reports(1)
        return statuses()

    result = fit(function, ValidationConfig(validate, ray_remote_kwargs=options), 1)
    assert [told for _, told in result.return_value] == [status]
    assert (tmp_path / "tries").read_text() == "x" * num_tries


# What is seen from the training function


def test_a_worker_sees_it_pending_or_waits_for_its_end(fit, gate):
    def function():
        reports(1)
        reports(2, validation=False)
        if not is_rank(0):
            return None
        found = [statuses(CheckpointConsistencyMode.COMMITTED), statuses(timeout_s=0.05)]
        opened(gate)
        return [*found, statuses()]

    def validate(checkpoint):
        passed(gate)
        return {"ok": 1}

    committed, timed_out, validated = fit(function, validate).return_value
    assert committed == timed_out == [[{"value": 1}, "PENDING_VALIDATION"], [{"value": 2}, "COMMITTED"]]
    assert validated == [[{"value": 1, "ok": 1}, "VALIDATED"], [{"value": 2}, "COMMITTED"]]


def test_without_a_checkpoint_or_a_way_to_validate_it_is_refused_where_it_is_asked_for(fit):
    def function():
        with pytest.raises(ValueError, match="Validation requires a checkpoint to be provided"):
            train.report({}, validation=True)
        with pytest.raises(ValueError, match="`validation_config` was not set on the trainer"):
            reports(1)
        train.report({})
        return statuses()

    assert fit(function, None).return_value == []


def test_arguments_that_are_not_plain_data_are_refused_with_their_path(fit):
    def function():
        with pytest.raises(TypeError, match=r"validation.fn_kwargs\['model'\]\[0\] is an object: it has to be"):
            reports(1, validation=ValidationTaskConfig({"model": [object()]}))
        with pytest.raises(TypeError, match="validation='yes' is neither a bool nor"):
            reports(1, validation="yes")
        return "refused"

    result = fit(function, doubled)
    assert (result.return_value, result.best_checkpoints) == ("refused", [])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ValidationConfig("fn"), "fn='fn' is not a function"),
        (lambda: ValidationConfig(doubled, 3), "Invalid `ValidationTaskConfig` type: task_config=3"),
        (lambda: ValidationTaskConfig([1]), r"fn_kwargs=\[1\] is not a dict of keyword arguments"),
        (lambda: ValidationTaskConfig({1: 2}), "is not a dict of keyword arguments"),
        (lambda: ValidationTaskConfig(timeout_s=0), "timeout_s=0 is not a number of seconds above 0"),
        (lambda: ValidationTaskConfig(timeout_s=float("nan")), "timeout_s=nan is not a number of seconds"),
        (lambda: ValidationTaskConfig(timeout_s=float("inf")), "or None for no limit"),
        (lambda: ValidationTaskConfig(timeout_s="1"), "timeout_s='1' is not a number of seconds"),
        (
            lambda: ValidationConfig(doubled, ray_remote_kwargs={"memory": 1}),
            r"ray_remote_kwargs\['memory'\]=1 has no meaning here: num_cpus, num_gpus, max_retries, retry_exceptions",
        ),
        (lambda: ValidationConfig(doubled, ray_remote_kwargs={"num_gpus": 1.5}), "neither below 1 nor a whole number"),
        (lambda: ValidationConfig(doubled, ray_remote_kwargs={"num_gpus": -1}), "is not a number of 0 or more"),
        (lambda: ValidationConfig(doubled, ray_remote_kwargs={"max_retries": -2}), "or -1 for no limit"),
        (lambda: ValidationConfig(doubled, ray_remote_kwargs={"retry_exceptions": 3}), "neither a bool nor a list"),
        (lambda: ValidationConfig(doubled, ray_remote_kwargs=[1]), "is not a dict such as"),
        (lambda: DataParallelTrainer(print, validation_config=doubled), "Invalid `ValidationConfig` type"),
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_given(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_a_function_that_cannot_be_sent_is_refused_before_any_process_starts(fit, tmp_path):
    import threading

    lock = threading.Lock()
    with pytest.raises(TypeError, match="validation_config: fn, with its fn_kwargs, cannot be sent"):
        fit(lambda: None, lambda checkpoint: lock)
    assert not (tmp_path / "runs").exists()


def test_more_gpus_than_there_are_are_refused_before_any_process_starts(fit, tmp_path):
    with pytest.raises(ValueError, match=r"validation_config asks for 64 GPU\(s\) beside the 0 of the workers"):
        fit(lambda: None, ValidationConfig(doubled, ray_remote_kwargs={"num_gpus": 64}))
    assert not (tmp_path / "runs").exists()


# Deaths and stops


def test_a_restart_of_the_workers_does_not_disturb_the_one_under_way(fit, gate, tmp_path):
    def function():
        if train.get_checkpoint() is None:
            reports(1)
            if is_rank(1):
                os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        if is_rank(0):
            before = statuses(CheckpointConsistencyMode.COMMITTED)
            opened(gate)
            return before, statuses()
        return None

    def validate(checkpoint):
        with (tmp_path / "starts").open("a") as file:
            file.write("x")
        passed(gate)
        return {"ok": 1}

    result = fit(function, validate, failure_config=FailureConfig(max_failures=1))
    assert result.return_value == [[[{"value": 1}, "PENDING_VALIDATION"]], [[{"value": 1, "ok": 1}, "VALIDATED"]]]
    assert (tmp_path / "starts").read_text() == "x"


def test_a_failed_training_does_not_wait_and_leaves_it_pending(fit, tmp_path):
    def validate(checkpoint):
        while not (tmp_path / "now").exists():
            signal.pause()
        return {"ok": 1}

    def function():
        if train.get_checkpoint() is None:
            reports(1)
            raise ValueError("no")

    with pytest.raises(WorkerGroupError) as failed:
        fit(function, validate)
    assert metrics_of(failed.value.result) == [{"value": 1}]
    (tmp_path / "now").touch()
    assert metrics_of(fit(function, validate)) == [{"value": 1, "ok": 1}]


SCRIPT = """
import os, signal, sys
from pathlib import Path
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig
from paceline.train import ValidationConfig, ValidationTaskConfig

at, num_workers = sys.argv[1], int(sys.argv[2])

def function():
    with open(f"started-{train.get_context().get_world_rank()}", "a") as file:
        file.write("x")
    if train.get_checkpoint() is None:
        train.report({"i": 1}, checkpoint=Checkpoint.from_dict({"i": 1}), validation=True)
        train.report({"i": 2}, checkpoint=Checkpoint.from_dict({"i": 2}), validation=True)
    if at == "while training" and not os.path.exists("again"):
        signal.pause()
    if at == "at a report" and not os.path.exists("again"):
        while True:
            train.report({"i": 3})
    return "returned"

def validate(checkpoint, driver):
    i = checkpoint.to_dict()["i"]
    with open("validated", "a") as file:
        file.write(f"{i} ")
    if not os.path.exists("again"):
        print("in the validation", flush=True)
        if at in ("while training", "after training"):
            os.kill(driver, signal.SIGKILL)
        if at == "at a report":
            os.kill(driver, signal.SIGINT)
        signal.pause()
    return {"ten": 10 * i}

result = DataParallelTrainer(
    function,
    scaling_config=ScalingConfig(num_workers),
    run_config=RunConfig(name="run", storage_path="runs"),
    validation_config=ValidationConfig(validate, ValidationTaskConfig({"driver": os.getpid()})),
).fit()
print("value", result.return_value, "metrics", result.metrics, [metrics for _, metrics in result.best_checkpoints])
"""


@pytest.mark.parametrize("num_workers", ["2", "0"])
@pytest.mark.parametrize("at", ["while training", "after training"])
def test_it_is_made_by_the_next_driver_when_one_was_killed_in_the_middle(
    run_script, tmp_path, processes_in, at, num_workers
):
    if (at, num_workers) == ("while training", "0"):
        pytest.skip("the function is the driver's own")
    ended = run_script(SCRIPT, at, num_workers)
    assert ended.returncode == -signal.SIGKILL
    alive = still_running(processes_in(tmp_path))
    assert alive == []
    (tmp_path / "again").touch()

    ended = run_script(SCRIPT, at, num_workers)
    assert ended.returncode == 0, ended.stderr
    assert "value returned metrics {'i': 2} [{'i': 1, 'ten': 10}, {'i': 2, 'ten': 20}]" in ended.stdout
    assert (tmp_path / "validated").read_text() == "1 1 2 "
    run_script(SCRIPT, at, num_workers)
    assert (tmp_path / "validated").read_text() == "1 1 2 ", "nothing is validated again"


@pytest.mark.parametrize("variable", ["PACELINE_PORTABLE", "PACELINE_START_METHOD"])
def test_it_is_made_in_a_spawned_process_where_workers_are_spawned(run_script, tmp_path, variable):
    (tmp_path / "again").touch()
    value = "1" if variable == "PACELINE_PORTABLE" else "spawn"
    ended = run_script(SCRIPT, "nowhere", "1", env={variable: value})
    assert ended.returncode == 0, ended.stderr
    assert "[{'i': 1, 'ten': 10}, {'i': 2, 'ten': 20}]" in ended.stdout


def test_ctrl_c_once_leaves_it_pending_for_the_next_launch(run_script, tmp_path):
    ended = run_script(SCRIPT, "at a report", "2")
    assert ended.returncode == 0, ended.stderr
    assert "run the script again with the same name to continue" in ended.stderr
    (tmp_path / "again").touch()
    ended = run_script(SCRIPT, "at a report", "2")
    assert ended.returncode == 0, ended.stderr
    assert "[{'i': 1, 'ten': 10}, {'i': 2, 'ten': 20}]" in ended.stdout


@pytest.mark.parametrize("num_workers", ["2", "0"])
def test_ctrl_c_while_only_validations_are_waited_for_leaves_them_and_trains_nothing_again(
    run_script, tmp_path, num_workers
):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", "nowhere", num_workers]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        said = []
        while "the training is over; 2 validations still to be made" not in "".join(said):
            said.append(process.stderr.readline())
            assert said[-1], "".join(said)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    if num_workers == "2":
        assert process.returncode == 0, err
        assert "value returned metrics {'i': 2} [{'i': 1}, {'i': 2}]" in out
    else:
        assert err.endswith("KeyboardInterrupt\n"), "as in any function that runs in this process"
    trained = (tmp_path / "started-0").read_text()

    (tmp_path / "again").touch()
    ended = run_script(SCRIPT, "nowhere", num_workers)
    assert ended.returncode == 0, ended.stderr
    assert "run run is trained; 2 validations left to be made" in ended.stderr
    assert "value returned metrics {'i': 2} [{'i': 1, 'ten': 10}, {'i': 2, 'ten': 20}]" in ended.stdout
    assert (tmp_path / "started-0").read_text() == trained == "x"


def test_a_lost_journal_has_it_made_again_for_the_manifest_says_that_it_was_asked_for(fit, tmp_path):
    """What it found out is gone with the journal; the checkpoint is not."""

    def function():
        if train.get_checkpoint() is None:
            reports(1, validation=ValidationTaskConfig({"by": 3}))
        return statuses()

    def validate(checkpoint, by):
        return {"times": by * value_of(checkpoint)}

    result = fit(function, validate)
    Path(result.path, "journal.jsonl").unlink()
    assert metrics_of(Result.from_path(result.path)) == [{"value": 1}]
    result = fit(function, validate)
    assert result.return_value == [[{"value": 1, "times": 3}, "VALIDATED"]]


def test_a_launch_that_cannot_validate_leaves_what_is_pending_and_waits_for_nothing(fit, tmp_path, capfd):
    def function():
        if train.get_checkpoint() is None:
            reports(1)
            raise ValueError("no")
        return statuses()

    with pytest.raises(WorkerGroupError):
        fit(function, lambda checkpoint: signal.pause())
    result = fit(function, None)
    assert result.return_value == [[{"value": 1}, "PENDING_VALIDATION"]]
    assert "already complete" not in capfd.readouterr().err
    fit(function, None)
    assert "already complete" in capfd.readouterr().err
    assert metrics_of(fit(function, doubled)) == [{"value": 1, "doubled": 2}]


def test_torch_is_there_and_computes_on_the_threads_it_was_given(tmp_path):
    from paceline.train.torch import TorchTrainer

    def validate(checkpoint):
        import torch

        return {"threads": torch.get_num_threads(), "grouped": torch.distributed.is_initialized()}

    result = TorchTrainer(
        lambda: reports(1),
        scaling_config=ScalingConfig(1),
        run_config=RunConfig(name="run", storage_path=tmp_path),
        validation_config={"fn": validate, "ray_remote_kwargs": {"num_cpus": 3}},
    ).fit()
    assert metrics_of(result) == [{"value": 1, "threads": 3, "grouped": False}]
