"""The examples of frameworks run as a user would run them, and reach the quality that they state."""

import signal
from pathlib import Path

import pytest

from paceline import tune
from paceline.train import Result


def quality(printed: str, name: str = "accuracy") -> float:
    """The number in the line of that name, a share of 1."""
    (message,) = [line.split()[1] for line in printed.splitlines() if line.startswith(f"{name} ")]
    return float(message.removesuffix("%")) / (100 if message.endswith("%") else 1)


def finished(directory: Path, num_reports: int, printed: str) -> Result:
    """The run as it lies there: complete, with a checkpoint whose files are as they were committed."""
    assert f"paceline: run {directory.name} finished after {num_reports} reports" in printed
    result = Result.from_path(str(directory))
    assert result.error is None
    assert result.checkpoint is not None
    result.checkpoint.verify()
    return result


@pytest.mark.parametrize("model", ["lightgbm", pytest.param("xgboost", marks=pytest.mark.slow)])
def test_tabular_predicts_raw_rows_by_the_checkpoint_alone_and_better_than_a_linear_model(run, tmp_path, model):
    pytest.importorskip(model, reason=f"{model} is not installed: the example was not run with it")
    code, printed = run("tabular.py", "--model", model, "--rows", "8000", "--rounds", "30")
    assert code == 0, printed
    assert "customers   5760 to learn from, 1600 to test on" in printed
    assert quality(printed, "auc") >= 0.85
    assert quality(printed, "auc") - quality(printed, "baseline") >= 0.05
    result = finished(tmp_path / f"tabular-{model}-8000", 30, printed)
    assert result.checkpoint.get_metadata()["preprocessor"]["fitted"]


@pytest.mark.slow
def test_tabular_fails_below_the_quality_it_states_and_names_what_to_install(run, tmp_path):
    code, printed = run("tabular.py", "--rows", "1000", "--rounds", "2")
    assert code == 1, printed
    assert printed.endswith("that is below what this example states\n")
    assert 0.5 < quality(printed, "auc") < 0.85
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\n\nsys.modules['xgboost'] = None\n")
    code, printed = run("tabular.py", "--model", "xgboost", "--name", "missing", env={"PYTHONPATH": str(hidden)})
    assert code == 1
    assert printed == "--model xgboost needs xgboost\n\nhint: pip install 'paceline[xgboost]'\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("script", "options", "kill", "num_reports", "least", "message"),
    [
        ("jax_mlp.py", "--samples 2000 --batch-size 32 --epochs 4 --lr 0.01", "0@step:4", 4, 0.95, ", of epoch 4\n"),
        # TensorFlow takes seconds to import in each process; on two workers it is run by tests/train.
        (
            "tensorflow_keras.py",
            "--samples 2000 --epochs 4 --lr 0.01 --num-workers 1",
            None,
            4,
            0.9,
            "[rank 0] epoch 4: ",
        ),
        ("lightning_classifier.py", "--samples 3000 --batch-size 16", None, 4, 0.9, ""),
        (
            "transformers_classifier.py",
            "--samples 2000 --steps 90 --report-every 45",
            None,
            3,
            0.95,
            "bad         the film was not very good\n",
        ),
    ],
    ids=lambda value: value if str(value).endswith(".py") else "",
)
def test_a_framework_reaches_its_accuracy(run, tmp_path, script, options, kill, num_reports, least, message):
    code, printed = run(script, *options.split(), "--name", "run", kill=kill)
    assert code == 0, printed
    assert ("paceline: attempt 2, from checkpoint checkpoint_00000" in printed) == (kill is not None)
    assert quality(printed) >= least
    assert message in printed
    finished(tmp_path / "run", num_reports, printed)


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_a_search_that_is_killed_goes_on_and_its_best_network_reaches_the_accuracy_it_states(run, tmp_path):
    options = ("--trials", "4", "--name", "search")
    code, first = run("tune_asha.py", *options, stop=signal.SIGKILL, stop_after="_00000 stopped")
    assert code == -signal.SIGKILL, first
    code, second = run("tune_asha.py", *options)
    assert code == 0, second
    assert "_00000 started" not in second, "what is over stays over"
    assert "paceline: search search resumed: " in second
    # Whether the last trial had begun when the driver was lost is a matter of luck; that none was forgotten is not.
    assert len(tune.ResultGrid.from_path(str(tmp_path / "search"))) == 4
    assert quality(second) >= 0.8
    (checkpoint,) = [line.split()[1] for line in second.splitlines() if line.startswith("checkpoint ")]
    assert Path(checkpoint).is_relative_to(tmp_path / "search")
    assert Path(checkpoint, ".manifest.json").exists()
