"""Writing with data processes: they write, they die, and what is seen at the end is whole."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from rows_in_units import dataset_of

import paceline.data
from paceline.data.block import Block
from paceline.data.exec.processes import shutdown
from paceline.data.write import write_parquet


@pytest.fixture(autouse=True)
def data_processes() -> Iterator[None]:
    yield
    shutdown()


def _read(path: Path) -> list[list[int]]:
    return [pq.ParquetFile(file).read().column("x").to_pylist() for file in sorted(path.iterdir())]


def test_data_processes_write_and_files_stay_in_order(tmp_path: Path) -> None:
    def writer(number: int) -> Iterator[Block]:
        yield Block({"x": np.array([number]), "pid": np.array([os.getpid()])})

    units = [lambda number=number: writer(number) for number in range(6)]
    write_parquet(dataset_of(*units, in_processes=True), tmp_path / "out")
    assert _read(tmp_path / "out") == [[number] for number in range(6)]
    pids = {row["pid"] for file in (tmp_path / "out").iterdir() for row in pq.ParquetFile(file).read().to_pylist()}
    assert os.getpid() not in pids
    assert os.listdir(tmp_path) == ["out"]


def test_a_write_by_so_many_processes(tmp_path: Path) -> None:
    rows = dataset_of(*([{"x": np.array([number])}] for number in range(4)), in_processes=True)
    write_parquet(rows, tmp_path / "out", concurrency=1)
    assert _read(tmp_path / "out") == [[number] for number in range(4)]


def test_a_failure_in_a_data_process_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[Block]:
        yield Block({"x": np.array([1])})
        raise RuntimeError("this file is broken")

    with pytest.raises(RuntimeError, match="this file is broken"):
        write_parquet(dataset_of([{"x": [0]}], failing, in_processes=True), tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_a_unit_whose_process_dies_is_written_again_and_once(tmp_path: Path) -> None:
    died = tmp_path / "died"

    def dying() -> Iterator[Block]:
        yield Block({"x": np.array([1])})
        if not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield Block({"x": np.array([2])})

    write_parquet(dataset_of([{"x": [0]}], dying, [{"x": [3]}], in_processes=True), tmp_path / "out")
    assert died.exists()
    assert _read(tmp_path / "out") == [[0], [1, 2], [3]]


KILLED = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import numpy as np
from rows_in_units import dataset_of
from paceline.data.block import Block
from paceline.data.write import write_parquet

def blocks():
    yield Block({"x": np.arange(10)})
    Path(sys.argv[3]).write_text(str(os.getpid()))
    while True:  # until the process that asked for it is gone
        time.sleep(0.01)

def watching():
    while not Path(sys.argv[3]).exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

import threading
threading.Thread(target=watching, daemon=True).start()
write_parquet(dataset_of([{"x": [0]}], blocks, in_processes=True), sys.argv[2])
"""


def test_a_writer_killed_while_its_processes_write_leaves_nothing_to_be_seen(tmp_path: Path) -> None:
    script, mark, out = tmp_path / "killed.py", tmp_path / "mark", tmp_path / "out"
    script.write_text(KILLED)
    arguments = [str(Path(__file__).parent), str(out), str(mark)]
    ended = subprocess.run([sys.executable, str(script), *arguments], timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert not out.exists()
    try:
        psutil.Process(int(mark.read_text())).wait(10)
    except psutil.NoSuchProcess:
        pass  # gone already, with the one that had started it
    write_parquet(dataset_of([{"x": [8]}], in_processes=True), out)
    assert _read(out) == [[8]]
    assert sorted(os.listdir(tmp_path)) == ["killed.py", "mark", "out"]


def test_the_methods_of_a_dataset_write(tmp_path: Path) -> None:
    dataset = paceline.data.range(100).map_batches(lambda batch: {"x": batch["id"] * 2})
    dataset.write_parquet(tmp_path / "out", min_rows_per_file=100)
    assert _read(tmp_path / "out") == [list(range(0, 200, 2))]
    back = paceline.data.read_parquet(str(tmp_path / "out"))
    assert back.count() == 100
