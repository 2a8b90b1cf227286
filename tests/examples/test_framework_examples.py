"""The examples of frameworks run as a user would run them, and reach the quality that they state.

A worker that is killed on the way is killed from outside: the script knows nothing of it, and goes on from its newest
checkpoint. That each framework does so exactly is tested with the framework; to import one again takes seconds.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from paceline import tune
from paceline.train import Result

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

# For workers that are fresh interpreters: more of them, that wait for the next run, would cost seconds for nothing.
NOTHING_AHEAD = {"PACELINE_PREWARM": "0"}

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs an example and returns its exit status and all it printed."""

    def run(
        name: str,
        *args: str,
        kill: str | None = None,
        env: Mapping[str, str] | None = None,
        lose_driver_after: str | None = None,
    ) -> tuple[int, str]:
        with_faults = ["-m", "paceline.testing.faults", "--kill", kill] if kill is not None else []
        command = [sys.executable, *with_faults, str(EXAMPLES / name), "--storage-path", str(tmp_path), *args]
        lines = []
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if lose_driver_after is not None and line.startswith(lose_driver_after):
                    process.send_signal(signal.SIGKILL)
        return process.returncode, "".join(lines)

    return run


def quality(printed: str, name: str = "accuracy") -> float:
    """The number in the line of that name, a share of 1."""
    (told,) = [line.split()[1] for line in printed.splitlines() if line.startswith(f"{name} ")]
    return float(told.removesuffix("%")) / (100 if told.endswith("%") else 1)


def finished(directory: Path, num_reports: int, printed: str) -> Result:
    """The run as it lies there: complete, with a checkpoint whose files are as they were committed."""
    assert f"paceline: run {directory.name} is complete after {num_reports} reports" in printed
    result = Result.from_path(str(directory))
    assert result.error is None
    assert result.checkpoint is not None
    result.checkpoint.verify()
    return result


def test_tabular_predicts_raw_rows_by_the_checkpoint_alone_and_better_than_a_linear_model(
    run: Run, tmp_path: Path
) -> None:
    code, printed = run("tabular.py", "--rows", "8000", "--rounds", "30")
    assert code == 0, printed
    assert "customers   5760 to learn from, 1600 to test on" in printed
    assert quality(printed, "auc") >= 0.85
    assert quality(printed, "auc") - quality(printed, "baseline") >= 0.05
    result = finished(tmp_path / "tabular-lightgbm-8000", 30, printed)
    assert result.checkpoint.get_metadata()["preprocessor"]["fitted"]


def test_tabular_says_what_to_install_where_xgboost_is_missing(run: Run, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("import sys\n\nsys.modules['xgboost'] = None\n")
    code, printed = run("tabular.py", "--model", "xgboost", env={"PYTHONPATH": str(hidden)})
    assert code == 1
    assert printed == "--model xgboost needs xgboost\n\nhint: pip install 'paceline[xgboost]'\n"
    assert [path.name for path in tmp_path.iterdir()] == ["hidden"], "it is said before anything is made"


def test_tabular_fails_below_the_quality_it_states(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("xgboost", reason="xgboost is not installed: the example was not run with it")
    code, printed = run("tabular.py", "--model", "xgboost", "--rows", "1000", "--rounds", "2")
    assert code == 1, printed
    assert printed.endswith("that is below what this example states\n")
    assert 0.5 < quality(printed, "auc") < 0.85
    finished(tmp_path / "tabular-xgboost-1000", 2, printed)


def test_tabular_reaches_its_quality_with_xgboost(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("xgboost", reason="xgboost is not installed: the example was not run with it")
    code, printed = run("tabular.py", "--model", "xgboost", "--rows", "8000", "--rounds", "30")
    assert code == 0, printed
    assert quality(printed, "auc") >= 0.85
    finished(tmp_path / "tabular-xgboost-8000", 30, printed)


@pytest.mark.timeout(300)
def test_the_jax_network_goes_on_after_a_kill_and_reaches_its_accuracy(run: Run, tmp_path: Path) -> None:
    options = ("--samples", "2000", "--batch-size", "32", "--epochs", "4", "--lr", "0.01", "--name", "spirals")
    code, printed = run("jax_mlp.py", *options, kill="0@step:4", env=NOTHING_AHEAD)
    assert code == 0, printed
    assert "paceline: attempt 2, from checkpoint checkpoint_00000" in printed
    assert quality(printed) >= 0.95
    assert ", of epoch 4\n" in printed
    finished(tmp_path / "spirals", 4, printed)


@pytest.mark.timeout(300)
def test_the_keras_model_reaches_its_accuracy(run: Run, tmp_path: Path) -> None:
    # TensorFlow takes seconds to import in each process; on two workers it is run by tests/train.
    options = ("--samples", "2000", "--epochs", "4", "--lr", "0.01", "--name", "waves", "--num-workers", "1")
    code, printed = run("tensorflow_keras.py", *options, env=NOTHING_AHEAD)
    assert code == 0, printed
    assert [f"[rank 0] epoch {epoch}: " in printed for epoch in (1, 2, 3, 4)] == [True] * 4
    assert quality(printed) >= 0.9
    finished(tmp_path / "waves", 4, printed)


@pytest.mark.timeout(300)
def test_the_lightning_classifier_reaches_its_accuracy(run: Run, tmp_path: Path) -> None:
    options = ("--samples", "3000", "--batch-size", "16", "--name", "pictures")
    code, printed = run("lightning_classifier.py", *options)
    assert code == 0, printed
    assert quality(printed) >= 0.9
    finished(tmp_path / "pictures", 4, printed)


@pytest.mark.timeout(300)
def test_the_transformers_classifier_reaches_its_accuracy_and_reads_text(run: Run, tmp_path: Path) -> None:
    options = ("--samples", "2000", "--steps", "90", "--report-every", "45", "--name", "reviews")
    code, printed = run("transformers_classifier.py", *options)
    assert code == 0, printed
    assert "bad         the film was not very good\n" in printed
    assert quality(printed) >= 0.95
    finished(tmp_path / "reviews", 3, printed)


@pytest.mark.timeout(300)
def test_a_search_that_is_killed_goes_on_and_its_best_network_reaches_the_accuracy_it_states(
    run: Run, tmp_path: Path
) -> None:
    options = ("--trials", "4", "--name", "search")
    code, first = run("tune_asha.py", *options, lose_driver_after="paceline: trial 00000 stopped")
    assert code == -signal.SIGKILL, first
    code, second = run("tune_asha.py", *options)
    assert code == 0, second
    assert "paceline: trial 00000 began" not in second, "what is over stays over"
    assert "paceline: search search continues: " in second
    # Whether the last trial had begun when the driver was lost is a matter of luck; that none was forgotten is not.
    assert len(tune.ResultGrid.from_path(str(tmp_path / "search"))) == 4
    assert quality(second) >= 0.8
    (checkpoint,) = [line.split()[1] for line in second.splitlines() if line.startswith("checkpoint ")]
    assert Path(checkpoint).is_relative_to(tmp_path / "search")
    assert Path(checkpoint, ".manifest.json").exists()
