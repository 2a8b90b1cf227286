"""The examples run as a user would run them, and print what they say they print."""

import os
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TESTS = [path for folder in ("examples", "cluster", "docs") for path in (ROOT / "tests" / folder).glob("test_*.py")]


def scripts():
    """Of examples/, without the modules that only make data."""
    paths = [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")]
    return sorted(path.name for path in paths if path.suffix == ".ipynb" or "__main__" in path.read_text())


def test_every_example_is_run_by_a_test_and_is_in_the_table_of_examples():
    tests = "".join(path.read_text() for path in TESTS)
    assert [name for name in scripts() if f'"{name}"' not in tests] == []
    table = (EXAMPLES / "README.md").read_text()
    assert [name for name in scripts() if f"| [`{name}`]({name}) | " not in table] == []


@pytest.mark.slow
def test_the_demo_reaches_the_accuracy_it_states(run, tmp_path):
    code, printed = run("demo.py")
    assert code == 0, printed
    assert "6000 images, 8 classes, target accuracy 95%" in printed
    assert "[rank 0] epoch 5 of 5: " in printed
    (accuracy,) = [line.split()[1] for line in printed.splitlines() if line.startswith("accuracy ")]
    assert float(accuracy.rstrip("%")) >= 95
    (checkpoint,) = [line.split()[1] for line in printed.splitlines() if line.startswith("checkpoint ")]
    assert Path(checkpoint, ".manifest.json").is_relative_to(tmp_path)
    assert Path(checkpoint, ".manifest.json").exists()


def test_the_demo_goes_on_after_a_kill_and_fails_below_the_accuracy_it_states(run):
    code, printed = run("demo.py", "--kill", "--epochs", "2", "--samples", "500")
    failed = printed.index("paceline: rank 1 failed: killed by SIGKILL")
    restored = printed.index("paceline: attempt 2, from checkpoint checkpoint_000001")
    assert printed.index("[rank 0] epoch 1 of 2") < failed < restored < printed.index("[rank 0] epoch 2 of 2")
    assert printed.count("[rank 0] epoch 1 of 2") == 1, "what was committed is not done again"
    assert "finished after 2 reports" in printed
    assert code == 1
    assert "that is below the 95% that this demo states" in printed


@pytest.mark.slow
def test_train_ddp_stopped_by_ctrl_c_continues_when_it_is_run_again(run):
    options = ("--num-workers", "2", "--epochs", "8", "--samples", "500", "--name", "ddp", "--min-accuracy")
    code, first = run("train_ddp.py", *options, "0.3", stop_after="[rank 0] epoch 0: ")
    assert code == 130, first
    assert "run ddp begins: 2 workers on this machine" in first
    assert "paceline: run ddp was stopped after" in first
    code, second = run("train_ddp.py", *options, "0.999")
    assert "paceline: run ddp continues, from checkpoint_" in second
    assert "paceline: run ddp finished after 8 reports" in second
    message = [line for line in (first + second).splitlines() if line.startswith("[rank 0] epoch ")]
    assert [line.split()[3] for line in message] == [f"{epoch}:" for epoch in range(8)], "each epoch once"
    assert second.count("ddp/checkpoint_000008\n") >= 1
    assert "; 100% is to be reached\nthat is below what this example states" in second
    assert code == 1


@pytest.mark.slow
def test_train_ddp_with_data_stopped_by_ctrl_c_goes_on_with_the_next_picture(run):
    options = ("--num-workers", "2", "--epochs", "4", "--samples", "1500", "--name", "data")
    options += ("--checkpoint-every", "10", "--min-accuracy", "0.3")
    code, first = run("train_ddp_with_data.py", *options, stop_after="[rank 0] epoch 0: ")
    assert code == 130, first
    assert "paceline: run data was stopped after" in first
    code, second = run("train_ddp_with_data.py", *options)
    assert code == 0, second
    assert "paceline: run data continues, from checkpoint_" in second
    # 24 batches an epoch for each worker: a report after each ten, and one in the end.
    assert "paceline: run data finished after 12 reports" in second
    message = [line for line in (first + second).splitlines() if line.startswith("[rank 0] epoch ")]
    assert [line.split()[3] for line in message] == ["0:", "1:", "2:", "3:"], "each epoch once"
    assert "'seen': 1001.0" in second, "every row of the validation set once, though they cannot be halved"


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_the_language_model_is_stopped_goes_on_sharded_and_beats_bigrams_by_far(run):
    # So few steps do not bring it to the 1.0 bits that it states by default.
    options = ("--steps", "100", "--report-every", "25", "--stories", "1000", "--write", "60", "--max-bits", "1.6")
    code, first = run("language_model.py", "--name", "model", *options, stop_after="[rank 0] step 25: ")
    assert code == 130, first
    assert "to be reached: 1.60 bits per byte, where a bigram model needs 2.9" in first
    assert re.search("run model was stopped after [123] report", first), first
    code, second = run("language_model.py", "--name", "model", *options, "--strategy", "fsdp")
    assert code == 0, second
    assert "paceline: run model continues, from checkpoint_00000" in second
    assert "paceline: run model finished after 4 reports" in second
    message = re.findall(r"^\[rank 0\] step (\d+): ", first + second, re.MULTILINE)
    assert message == ["25", "50", "75", "100"], "no step twice"
    written = second.partition("model/checkpoint_000004:\n\n")[2].partition("\n\nbits per byte ")[0]
    assert len(written) == 80, "20 characters that it is given, and 60 of its own"
    (bits,) = [line for line in second.splitlines() if line.startswith("bits per byte  ")]
    assert float(bits.split()[3].rstrip(",")) < 1.6, second


@pytest.mark.slow
def test_the_language_model_takes_text_of_ones_own_and_says_when_it_is_too_short(run, tmp_path):
    (tmp_path / "book.txt").write_text("Two lines\nof text\n")
    (tmp_path / "other.txt").write_text("And three\nmore lines\nof text\n")
    code, printed = run("language_model.py", "--text", str(tmp_path / "*.txt"))
    assert code == 1
    assert "the text has less than one batch: use a smaller --batch-size or --context" in printed


def test_no_document_comes_twice_from_tokenized_text_when_a_worker_is_killed(run):
    code, printed = run("tokenize_text.py", "--stories", "2000", "--report-every", "10", kill="1@report:3")
    assert code == 0, printed
    assert "paceline: attempt 2, from checkpoint checkpoint_00000" in printed
    (documents,) = re.findall(r"^documents  (\d+) of 2000$", printed, re.MULTILINE)
    assert 1990 <= int(documents) <= 2000


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is room for one worker only")
@pytest.mark.slow
def test_the_elastic_run_shrinks_grows_and_has_the_loss_of_the_undisturbed_one(run):
    options = ("--steps", "24", "--samples", "300", "--checkpoint-every", "4", "--min-accuracy", "0.2")
    code, printed = run("elastic.py", *options)
    assert code == 0, printed
    assert "paceline: rank 1 failed: killed by SIGKILL" in printed
    sizes = [line.split()[2:] for line in printed.splitlines() if line.startswith("from step ")]
    assert [" ".join(size[1:]) for size in sizes] == ["2 workers", "1 worker", "2 workers"]
    assert "loss        of all 24 steps as in the undisturbed run, to " in printed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_batch_prediction_has_every_row_once_in_order_and_predicts_well(run, tmp_path):
    """Killed in the middle, such a write goes on: tests/data/test_write_resume.py."""
    options = ("--samples", "1600", "--files", "8", "--epochs", "3", "--min-accuracy", "0.4")
    code, printed = run("batch_prediction.py", *options)
    assert code == 0, printed
    assert "1600 pictures in 8 files, " in printed
    assert float(printed.split("files, ")[1].split("%")[0]) > 40, "it has learned"
    assert pq.read_table(tmp_path / "predictions")["id"].to_pylist() == list(range(1600))
