"""The examples run as a user would run them, and print what they say they print."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs an example and returns its exit status and all it printed."""

    def run(name: str, *args: str, interrupt_after: str | None = None) -> tuple[int, str]:
        command = [sys.executable, str(EXAMPLES / name), "--storage-path", str(tmp_path), *args]
        lines = []
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if interrupt_after is not None and line.startswith(interrupt_after):
                    process.send_signal(signal.SIGINT)
        return process.returncode, "".join(lines)

    return run


def test_the_demo_reaches_the_accuracy_it_states(run: Run, tmp_path: Path) -> None:
    code, printed = run("demo.py")
    assert code == 0, printed
    assert "6000 pictures of 8 shapes, to be told apart with an accuracy of 95%" in printed
    assert "[rank 0] epoch 5 of 5: " in printed
    (accuracy,) = [line.split()[1] for line in printed.splitlines() if line.startswith("accuracy ")]
    assert float(accuracy.rstrip("%")) >= 95
    (checkpoint,) = [line.split()[1] for line in printed.splitlines() if line.startswith("checkpoint ")]
    assert Path(checkpoint).is_relative_to(tmp_path)
    assert Path(checkpoint, ".manifest.json").exists()


def test_the_demo_goes_on_after_a_kill_and_fails_below_the_accuracy_it_states(run: Run) -> None:
    code, printed = run("demo.py", "--kill", "--epochs", "2", "--samples", "500")
    failed = printed.index("paceline: rank 1 failed: killed by SIGKILL")
    restored = printed.index("paceline: attempt 2, from checkpoint checkpoint_000001")
    assert printed.index("[rank 0] epoch 1 of 2") < failed < restored < printed.index("[rank 0] epoch 2 of 2")
    assert printed.count("[rank 0] epoch 1 of 2") == 1, "what was committed is not done again"
    assert "is complete after 2 reports" in printed
    assert code == 1
    assert "that is below the 95% that this demo states" in printed


def test_train_ddp_stopped_by_ctrl_c_continues_when_it_is_run_again(run: Run) -> None:
    options = ("--num-workers", "4", "--epochs", "3", "--samples", "1000", "--name", "ddp")
    code, first = run("train_ddp.py", *options, interrupt_after="[rank 0] epoch 0: ")
    assert code == 0, first
    assert "run ddp begins: 4 workers on this machine" in first
    assert "paceline: stopped after report" in first
    code, second = run("train_ddp.py", *options)
    assert code == 0, second
    assert "paceline: run ddp continues, from checkpoint_" in second
    assert "paceline: run ddp is complete after 3 reports" in second
    told = [line for line in (first + second).splitlines() if line.startswith("[rank 0] epoch ")]
    assert [line.split()[3] for line in told] == ["0:", "1:", "2:"], "each epoch once"
    assert second.count("ddp/checkpoint_000003\n") >= 1


def test_train_ddp_with_data_learns_from_files_and_counts_every_validation_row_once(run: Run) -> None:
    options = ("--num-workers", "4", "--epochs", "3", "--samples", "2000")
    code, printed = run("train_ddp_with_data.py", *options)
    assert code == 0, printed
    told = [line for line in printed.splitlines() if line.startswith("[rank 0] epoch ")]
    assert [line.split()[3] for line in told] == ["0:", "1:", "2:"]
    assert "is complete after 3 reports" in printed
    assert "'seen': 401.0" in printed, "the validation set has 401 rows, for four workers"
    accuracy = [float(line.split()[-1].rstrip("%")) for line in told]
    assert accuracy[-1] > max(accuracy[0], 30), "it learns"


@pytest.mark.timeout(300)
def test_a_batch_prediction_that_is_killed_goes_on_and_ends_as_if_it_had_not_been(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--samples", "1600", "--files", "8", "--epochs", "3")
    command = [sys.executable, str(EXAMPLES / "batch_prediction.py"), "--storage-path", str(tmp_path), *options]
    journal = tmp_path / ".predictions.resuming" / "done.jsonl"
    with (
        (tmp_path / "printed").open("w+") as printed,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT, cwd=tmp_path
        ) as process,
    ):
        deadline = time.monotonic() + 200
        # The first line tells of the job, each other of a unit that is done.
        while not journal.exists() or journal.read_bytes().count(b"\n") < 4:
            assert process.poll() is None, (tmp_path / "printed").read_text()
            assert time.monotonic() < deadline, (tmp_path / "printed").read_text()
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "predictions").exists()
    staged = {path.stat().st_ino for path in (tmp_path / ".predictions.resuming" / "files").iterdir()}

    code, second = run("batch_prediction.py", *options)
    assert code == 0, second
    assert "1600 pictures in 8 files, " in second
    assert float(second.split("files, ")[1].split("%")[0]) > 40, "it has learned"
    out = tmp_path / "predictions"
    kept = [path for path in sorted(out.glob("*.parquet")) if path.stat().st_ino in staged]
    assert len(kept) >= 3, "what was predicted before the kill is not predicted again"
    found = pq.read_table(out)
    assert found["id"].to_pylist() == list(range(1600)), "every row once, in order"

    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))  # torch would set it
    from batch_prediction import Network, ShapePredictor

    predictor = ShapePredictor(str(tmp_path / "model" / "checkpoint_000003"), Network)
    pictures = pq.read_table(tmp_path / "pictures")
    undisturbed = predictor.predict({"picture": pictures["picture"].to_pylist()})
    assert found["predicted"].to_pylist() == undisturbed["predicted"].tolist()
    np.testing.assert_allclose(found["sure"], undisturbed["sure"], rtol=1e-4)


def test_the_search_finds_a_better_network_than_chance_and_goes_on_where_it_was(run: Run) -> None:
    options = ("--trials", "3", "--epochs", "3", "--samples", "600")
    code, printed = run("tune_asha.py", *options)
    assert code == 0, printed
    (best,) = [line for line in printed.splitlines() if line.startswith("best  ")]
    assert float(best.split()[1].rstrip("%")) > 100 / 8
    code, printed = run("tune_asha.py", *options)
    assert code == 0, printed
    assert "is already complete: nothing is run" in printed
    assert best in printed
