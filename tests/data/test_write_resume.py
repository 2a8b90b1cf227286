"""An interrupted write with `resume=True` continues with what is left and ends like one that was not interrupted."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from made_datasets import dataset_of

import paceline.data
from paceline.data.block import Block
from paceline.data.sinks import write_progress
from paceline.data.write import write_csv, write_json, write_parquet
from processes import wait_until

NUM_UNITS = 5


class Interrupted(BaseException):
    """Not an error of the write, as little as Ctrl-C."""


def _read(path):
    return [pq.ParquetFile(file).read().column("x").to_pylist() for file in sorted(path.glob("*.parquet"))]


def _dataset(read, fail_at=None, shift=0):
    """Notes the units that are read, and is interrupted in one of them."""

    def unit(number):
        read.append(number)
        if number == fail_at:
            raise Interrupted
        if number != 2:  # Which is empty.
            yield Block({"x": np.array([10 * number, 10 * number + 1])})

    units = dataset_of(*(lambda number=number: unit(number) for number in range(NUM_UNITS)))
    return units.map_batches(_add, fn_kwargs={"shift": shift})


def _add(batch, shift):
    return {"x": batch["x"] + shift}


WHOLE = [[0, 1], [10, 11], [30, 31], [40, 41]]


@pytest.mark.parametrize("fail_at", range(NUM_UNITS))
def test_only_the_units_that_are_left_are_written(tmp_path, fail_at):
    read = []
    with pytest.raises(Interrupted):
        write_parquet(_dataset(read, fail_at), tmp_path / "out", resume=True)
    assert not (tmp_path / "out").exists()
    read.clear()
    write_parquet(_dataset(read), tmp_path / "out", resume=True)
    # The unit before is done again where its end was not recorded.
    assert read[0] in (fail_at, max(fail_at - 1, 0), max(fail_at - 2, 0))
    assert read[-1] == NUM_UNITS - 1
    assert _read(tmp_path / "out") == WHOLE
    assert os.listdir(tmp_path) == ["out"]
    inodes = {path.stat().st_ino for path in (tmp_path / "out").iterdir()}
    read.clear()
    write_parquet(_dataset(read), tmp_path / "out", resume=True)
    assert read == [], "a write that is done is not done again"
    assert {path.stat().st_ino for path in (tmp_path / "out").iterdir()} == inodes
    assert len(paceline.data.read_parquet(str(tmp_path / "out")).take_all()) == 8


@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_interrupted_at_any_rename_it_is_finished_by_the_next(tmp_path, monkeypatch, mode):
    rename, num_renames = Path.rename, 0
    for crash_at in range(1, 100):
        target = tmp_path / str(crash_at) / "out"
        if mode == "overwrite":
            write_parquet(dataset_of([{"x": [7]}]), target)
        num_renames = 0

        def counted(self, other, crash_at=crash_at):
            nonlocal num_renames
            num_renames += 1
            if num_renames == crash_at:
                raise Interrupted
            return rename(self, other)

        monkeypatch.setattr(Path, "rename", counted)
        try:
            write_parquet(_dataset([]), target, resume=True, mode=mode)
        except Interrupted:
            assert not target.exists() or _read(target) == [[7]]
        monkeypatch.setattr(Path, "rename", rename)
        write_parquet(_dataset([]), target, resume=True, mode=mode)
        assert _read(target) == WHOLE
        assert os.listdir(target.parent) == ["out"]
        if num_renames < crash_at:
            return
    pytest.fail("it never came to an end")


def test_a_file_that_is_not_whole_any_more_is_written_again(tmp_path):
    with pytest.raises(Interrupted):
        write_parquet(_dataset([], 4), tmp_path / "out", resume=True)
    staged = sorted((tmp_path / ".out.resuming" / "files").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    staged[1].write_bytes(b"cut")
    with (tmp_path / ".out.resuming" / "done.jsonl").open("ab") as journal:
        journal.write(b"00000000 torn")
    read = []
    write_parquet(_dataset(read), tmp_path / "out", resume=True)
    assert read == [1, 2, 3, 4]
    assert _read(tmp_path / "out") == WHOLE


@pytest.mark.parametrize(
    "again",
    [
        lambda path: write_parquet(dataset_of([{"x": [1]}]), path, resume=True),
        lambda path: write_parquet(_dataset([]).map_batches(lambda batch: batch), path, resume=True),
        lambda path: write_parquet(_dataset([], shift=1), path, resume=True),
        lambda path: write_parquet(_dataset([]), path, resume=True, compression="zstd"),
        lambda path: write_json(_dataset([]), path, resume=True),
    ],
    ids=["other rows", "another step", "another argument", "another option", "another format"],
)
def test_another_write_does_not_continue_with_its_files(tmp_path, again):
    with pytest.raises(Interrupted):
        write_parquet(_dataset([], 3), tmp_path / "out", resume=True)
    with pytest.raises(ValueError, match=r"the unfinished write to .*out has different rows, steps"):
        again(tmp_path / "out")
    write_parquet(_dataset([]), tmp_path / "out", resume=True)
    assert _read(tmp_path / "out") == WHOLE


def test_one_process_at_a_time(tmp_path):
    def unit():
        with pytest.raises(RuntimeError, match="another process is writing to"):
            write_parquet(dataset_of(unit), tmp_path / "out", resume=True)
        yield Block({"x": np.array([1])})

    write_parquet(dataset_of(unit), tmp_path / "out", resume=True)
    assert _read(tmp_path / "out") == [[1]]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: write_parquet(_dataset([]).sort("x"), path, resume=True), "sort.* combines the rows"),
        (lambda path: write_parquet(_dataset([]), path, resume=True, min_rows_per_file=3), "with min_rows_per_file"),
        (lambda path: write_csv(_dataset([]), "memory://x", resume=True), "cannot write to the store"),
        (lambda path: write_csv(_dataset([]), path.parent, resume=True), "needs an empty directory"),
    ],
)
def test_a_write_that_cannot_be_resumed_is_refused(tmp_path, write, message):
    (tmp_path / "other").touch()
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "out")
    assert os.listdir(tmp_path) == ["other"]


SCRIPT = """
import sys, time
import paceline.data

def multiply(batch):
    while batch["id"][0] >= 12 and sys.argv[1] == "is killed":
        time.sleep(0.01)
    with open("done", "a") as file:
        file.write(f"{batch['id'][0]}\\n")
    return {"x": batch["id"] * 10}

if __name__ == "__main__":
    rows = paceline.data.range(24, override_num_blocks=24).map_batches(multiply)
    rows.write_parquet("out", resume=True)
"""


def test_a_killed_write_resumes_with_each_row_once(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    journal = tmp_path / ".out.resuming" / write_progress._DONE
    with subprocess.Popen([sys.executable, "script.py", "is killed"], cwd=tmp_path) as driver:
        wait_until(lambda: driver.poll() is not None or (journal.exists() and journal.read_bytes().count(b"\n") >= 7))
        driver.send_signal(signal.SIGKILL)
    assert not (tmp_path / "out").exists()
    (tmp_path / "done").rename(tmp_path / "done_first")
    subprocess.run([sys.executable, "script.py", "continues"], cwd=tmp_path, check=True)
    assert [x for file in _read(tmp_path / "out") for x in file] == [10 * number for number in range(24)]
    again = [int(line) for line in (tmp_path / "done").read_text().split()]
    assert min(again) >= 6, "what was written before is not done again"
    assert len(again) == len(set(again))
    assert sorted(os.listdir(tmp_path)) == ["done", "done_first", "out", "script.py"]
