"""Validation beside training, in a process of its own: whatever becomes of it, the training continues."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from training_scripts import HEAD

from paceline import train
from paceline.train import Checkpoint, CheckpointConsistencyMode, Result, ValidationConfig, ValidationTaskConfig
from processes import still_running


@pytest.fixture
def fit(fit):
    def fit_and_validate(function, validate, num_workers=2, **options):
        if not isinstance(validate, ValidationConfig | None):
            validate = ValidationConfig(validate)
        return fit(function, num_workers, validation_config=validate, **options)

    return fit_and_validate


@pytest.fixture
def gate(tmp_path):
    """A named pipe: who reads it waits for who writes to it, and the other way round."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


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


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_a_validation_returns_is_among_the_metrics_of_the_checkpoint(fit, num_workers, capfd):
    """What a report gives it goes before what the trainer was given."""

    def function():
        reports(1)
        reports(2, validation=ValidationTaskConfig({"split": "test", "limits": [float("inf"), 3]}))

    def validate(checkpoint, split, kind, limits=None):
        print("from the validation")
        return {"doubled": 2 * value_of(checkpoint), "split": split, "kind": kind.__name__, "limits": limits}

    defaults = ValidationTaskConfig({"split": "dev", "kind": object})
    result = fit(function, ValidationConfig(validate, defaults), num_workers)
    expected = [
        {"value": 1, "doubled": 2, "split": "dev", "kind": "object", "limits": None},
        {"value": 2, "doubled": 4, "split": "test", "kind": "object", "limits": [float("inf"), 3]},
    ]
    assert metrics_of(result) == expected
    assert metrics_of(Result.from_path(result.path)) == expected
    assert result.metrics == {"value": 2}, "what rank 0 reported, not what was found out about a checkpoint"
    result.checkpoint.verify()
    assert (result.log_dir / "validation" / "checkpoint_000001.log").read_text() == "from the validation\n"
    assert "from the validation" not in capfd.readouterr().out


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
    (lambda checkpoint: sys.exit(0), "SystemExit: 0"),
    (lambda checkpoint: [1], "TypeError: the validation function must return a dict of metrics, got [1]"),
    (lambda checkpoint: {"x": {"y": object()}}, "TypeError: the validation's metrics['x']['y'] must be a number"),
    (takes_nothing, "TypeError: takes_nothing() takes 0 positional arguments"),
    (reports_itself, "SessionMisuseError: `report` cannot be used outside of a Paceline training function"),
]


def test_one_that_fails_or_takes_too_long_leaves_the_metrics_and_the_training_alone(fit, capfd, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    num_failing = len(FAILURES)

    def function():
        patient = ValidationTaskConfig(timeout_s=100)
        reports(*range(num_failing), validation=patient)
        reports(100)
        reports(101, validation=ValidationTaskConfig(timeout_s=0.4))
        reports(102, validation=patient)
        return statuses()

    def validate(checkpoint):
        value = value_of(checkpoint)
        while value in (100, 101):
            signal.pause()
        return FAILURES[value][0](checkpoint) if value < 100 else {"ok": 1}

    result = fit(function, ValidationConfig(validate, ValidationTaskConfig(timeout_s=0.3)))
    failed = [[{"value": value}, "VALIDATION_FAILED"] for value in range(num_failing)]
    failed += [[{"value": value}, "VALIDATION_TIMEOUT"] for value in (100, 101)]
    assert result.return_value == [*failed, [{"value": 102, "ok": 1}, "VALIDATED"]]
    assert metrics_of(result)[:-1] == [metrics for metrics, _ in failed]
    lines = capfd.readouterr().err.splitlines()
    failures = [line for line in lines if "cannot validate" in line]
    outputs = [*(output for _, output in FAILURES), *(f"stopped after its timeout of {s} s" for s in (0.3, 0.4))]
    for number, (line, output) in enumerate(zip(failures, outputs, strict=True), start=1):
        name = f"checkpoint_{number:06d}"
        assert line.startswith(f"paceline: cannot validate {name}: {output}")
        assert line.endswith(f". See {result.log_dir}/validation/{name}.log")
    assert "run run finished after 10 reports" in lines[-1]


def test_the_training_does_not_wait_a_worker_sees_it_pending_and_a_restart_does_not_disturb_it(fit, gate, tmp_path):
    def function():
        if train.get_checkpoint() is None:
            reports(1)
            reports(2, validation=False)
            if is_rank(1):
                os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        if not is_rank(0):
            return None
        found = [statuses(CheckpointConsistencyMode.COMMITTED), statuses(timeout_s=0.05)]
        gate.write_bytes(b"")
        return [os.getpid(), *found, statuses()]

    def validate(checkpoint):
        with (tmp_path / "pids").open("a") as file:
            print(os.getpid(), file=file)
        gate.read_bytes()
        return {"ok": 1}

    pid, committed, timed_out, validated = fit(function, validate, max_failures=1).return_value
    assert committed == timed_out == [[{"value": 1}, "PENDING_VALIDATION"], [{"value": 2}, "COMMITTED"]]
    assert validated == [[{"value": 1, "ok": 1}, "VALIDATED"], [{"value": 2}, "COMMITTED"]]
    (validator,) = (tmp_path / "pids").read_text().split()
    assert int(validator) not in (pid, os.getpid())


def test_without_a_checkpoint_or_a_way_to_validate_it_is_refused_where_it_is_asked_for(fit):
    def function():
        with pytest.raises(ValueError, match="Validation requires a checkpoint to be provided"):
            train.report({}, validation=True)
        with pytest.raises(ValueError, match="`validation_config` was not set on the trainer"):
            reports(1)
        with pytest.raises(
            TypeError, match=r"validation.fn_kwargs\['model'\]\[0\] must be a number, a string, None, .*got an object"
        ):
            reports(1, validation=ValidationTaskConfig({"model": [object()]}))
        with pytest.raises(TypeError, match="validation must be True, False or a"):
            reports(1, validation="yes")
        train.report({})
        return statuses()

    assert fit(function, None, 1).return_value == []


def test_what_cannot_be_sent_or_has_no_gpu_is_refused_before_any_process_starts(fit, tmp_path):
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"cannot send validation_config\.fn and its fn_kwargs"):
        fit(lambda: None, lambda checkpoint: lock)
    with pytest.raises(ValueError, match=r"validation_config requests 64 GPU\(s\) beside the 0 of the workers"):
        fit(lambda: None, ValidationConfig(doubled, ray_remote_kwargs={"num_gpus": 64}))
    assert not (tmp_path / "run").exists()


# Deaths and stops


SCRIPT = f"""{HEAD}
import time
from paceline.train import ValidationConfig, ValidationTaskConfig

at, num_workers = sys.argv[1], int(sys.argv[2])

def function(config):
    with open(f"started-{{train.get_context().get_world_rank()}}", "a") as file:
        file.write("x")
    if train.get_checkpoint() is None:
        train.report({{"i": 1}}, checkpoint=Checkpoint.from_dict({{"i": 1}}), validation=True)
        train.report({{"i": 2}}, checkpoint=Checkpoint.from_dict({{"i": 2}}), validation=True)
        Path("both").touch()
    if at == "while training" and not os.path.exists("again"):
        signal.pause()
    return "returned"

def validate(checkpoint, driver):
    i = checkpoint.to_dict()["i"]
    with open("validated", "a") as file:
        file.write(f"{{i}} ")
    if not os.path.exists("again"):
        if at in ("while training", "after training"):
            while not os.path.exists("both"):  # Otherwise the driver may die before the second checkpoint.
                time.sleep(0.01)
            os.kill(driver, signal.SIGKILL)
        signal.pause()
    return {{"ten": 10 * i}}

validation = ValidationConfig(validate, ValidationTaskConfig({{"driver": os.getpid()}}))
result = fit(function, num_workers, validation_config=validation)
print("value", result.return_value, "metrics", result.metrics, [metrics for _, metrics in result.best_checkpoints])
"""


@pytest.mark.parametrize(
    ("at", "num_workers"), [("while training", "2"), pytest.param("after training", "0", marks=pytest.mark.slow)]
)
def test_it_is_made_by_the_next_driver_when_one_was_killed_in_the_middle(
    run_script, tmp_path, processes_in, at, num_workers
):
    assert run_script(SCRIPT, at, num_workers).returncode == -signal.SIGKILL
    assert still_running(processes_in(tmp_path), within_s=60) == []
    (tmp_path / "again").touch()
    ended = run_script(SCRIPT, at, num_workers)
    assert ended.returncode == 0, ended.stderr
    assert "value returned metrics {'i': 2} [{'i': 1, 'ten': 10}, {'i': 2, 'ten': 20}]" in ended.stdout
    assert (tmp_path / "validated").read_text() == "1 1 2 "
    run_script(SCRIPT, at, num_workers)
    assert (tmp_path / "validated").read_text() == "1 1 2 ", "nothing is validated again"


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["PACELINE_PORTABLE", "PACELINE_START_METHOD"])
def test_it_is_made_in_a_spawned_process_where_workers_are_spawned(run_script, tmp_path, variable):
    (tmp_path / "again").touch()
    value = "1" if variable == "PACELINE_PORTABLE" else "spawn"
    ended = run_script(SCRIPT, "nowhere", "1", env={variable: value})
    assert ended.returncode == 0, ended.stderr
    assert "[{'i': 1, 'ten': 10}, {'i': 2, 'ten': 20}]" in ended.stdout


@pytest.mark.parametrize("num_workers", ["2", pytest.param("0", marks=pytest.mark.slow)])
def test_ctrl_c_while_only_validations_are_waited_for_leaves_them_and_trains_nothing_again(
    run_script, tmp_path, num_workers
):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", "nowhere", num_workers]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        output = []
        while "training is done; 2 validations left to do" not in "".join(output):
            output.append(process.stderr.readline())
            assert output[-1], "".join(output)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (130, ""), err
    assert "to run the remaining 2 validations" in err
    stopped = Result.from_path(tmp_path / "runs" / "run")
    assert (stopped.status, metrics_of(stopped)) == ("stopped", [{"i": 1}, {"i": 2}])
    trained = (tmp_path / "started-0").read_text()

    (tmp_path / "again").touch()
    ended = run_script(SCRIPT, "nowhere", num_workers)
    assert ended.returncode == 0, ended.stderr
    assert "run run is trained; 2 validations left to do" in ended.stderr
    assert "value returned metrics {'i': 2} [{'i': 1, 'ten': 10}, {'i': 2, 'ten': 20}]" in ended.stdout
    assert (tmp_path / "started-0").read_text() == trained == "x"


def test_a_failed_training_and_a_launch_that_cannot_validate_leave_it_pending_and_wait_for_nothing(fit, capfd):
    def function():
        if train.get_checkpoint() is None:
            reports(1)
            raise ValueError("no")
        return statuses()

    with pytest.raises(train.WorkerGroupError) as failed:
        fit(function, lambda checkpoint: signal.pause())
    assert metrics_of(failed.value.result) == [{"value": 1}]
    result = fit(function, None)
    assert result.return_value == [[{"value": 1}, "PENDING_VALIDATION"]]
    assert "already finished" not in capfd.readouterr().err
    fit(function, None)
    assert "already finished" in capfd.readouterr().err
    assert metrics_of(fit(function, doubled)) == [{"value": 1, "doubled": 2}]
