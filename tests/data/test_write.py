"""What all writers have in common: readers never see half a write; modes, names and sizes of files."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import dataset_of, numbers
from pyarrow.fs import LocalFileSystem

from paceline.data.block import Block
from paceline.data.sinks import targets
from paceline.data.sinks.targets import next_free_numbers, number_files
from paceline.data.write import SaveMode, write_csv, write_json, write_parquet
from processes import wait_until


def _rows(*numbers):
    return {"x": np.array(numbers, np.int64)}


def _read(path):
    """The rows of each file that can be seen."""
    return {
        str(file.relative_to(path)): pq.ParquetFile(file).read().column("x").to_pylist()
        for file in sorted(path.rglob("*.parquet"))
    }


def _everything(path):
    return sorted(str(one.relative_to(path)) for one in path.rglob("*"))


def _fails_after(*numbers, error=None):
    def blocks():
        yield Block(_rows(*numbers))
        raise error or RuntimeError("the disk of the reader is broken")

    return blocks


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


THREE = ([_rows(0, 1)], [_rows(2), _rows(3)], [_rows(4)])


def test_units_are_files_that_are_the_same_every_time_and_more_are_added_after_the_highest_number(tmp_path):
    for name in ("one", "two"):
        write_parquet(dataset_of(*THREE), tmp_path / name)
    one, two = ([file.read_bytes() for file in sorted((tmp_path / name).iterdir())] for name in ("one", "two"))
    assert one == two
    write_parquet(dataset_of([_rows(5)], [_rows(6)]), tmp_path / "one")
    assert _read(tmp_path / "one") == {
        f"part-00000{number}.parquet": rows for number, rows in enumerate([[0, 1], [2, 3], [4], [5], [6]])
    }
    assert len(_everything(tmp_path)) == 2 + 3 + 5, "nothing else is left"


@pytest.mark.parametrize(
    ("mode", "error", "in_processes"),
    [
        *((mode, RuntimeError("broken"), False) for mode in SaveMode if mode is not SaveMode.UPSERT),
        (SaveMode.APPEND, KeyboardInterrupt("broken"), False),
        (SaveMode.OVERWRITE, RuntimeError("broken"), True),
    ],
)
def test_a_failure_in_the_middle_of_a_unit_leaves_what_was_there(tmp_path, mode, error, in_processes):
    place = tmp_path / "place"
    place.mkdir()
    out = place / "a" / "b" / "out"
    if mode in (SaveMode.APPEND, SaveMode.OVERWRITE):
        write_parquet(dataset_of([_rows(7)]), out)
    before = _everything(place)
    failing = dataset_of([_rows(0)], _fails_after(1, 2, error=error), in_processes=in_processes)
    with pytest.raises(type(error), match="broken"):
        write_parquet(failing, out, mode=mode)
    assert _everything(place) == before
    write_parquet(dataset_of([_rows(1)]), out, mode=mode)
    assert 1 in [row for rows in _read(out).values() for row in rows]


@pytest.mark.parametrize("concurrency", [None, 1])
def test_data_processes_write_and_files_stay_in_order_though_one_dies(tmp_path, concurrency):
    died, out = tmp_path / "died", tmp_path / "out"

    def write_unit(number):
        yield Block({"x": np.array([number]), "pid": np.array([os.getpid()])})
        if number == 3 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield Block({"x": np.array([number + 100]), "pid": np.array([os.getpid()])})

    units = [lambda number=number: write_unit(number) for number in range(6)]
    write_parquet(dataset_of(*units, in_processes=True), out, concurrency=concurrency)
    assert died.exists()
    assert list(_read(out).values()) == [[number, number + 100] for number in range(6)]
    pids = {row["pid"] for file in out.iterdir() for row in pq.ParquetFile(file).read().to_pylist()}
    assert os.getpid() not in pids


@pytest.mark.parametrize("portable", [False, True])
def test_overwrite_replaces_all_that_was_there(tmp_path, out, portable, monkeypatch):
    if portable:
        monkeypatch.setenv("PACELINE_PORTABLE", "1")  # without an exchange of two directories
    write_parquet(dataset_of(*THREE), out)
    (out / "notes.txt").write_text("old")
    out.chmod(0o750)
    (tmp_path / "link").symlink_to("out")
    write_parquet(dataset_of([_rows(9)]), tmp_path / "link", mode="overwrite")
    assert _everything(tmp_path) == ["link", "out", "out/part-000000.parquet"]
    assert (tmp_path / "link").is_symlink()
    assert _read(out) == {"part-000000.parquet": [9]}
    assert out.stat().st_mode & 0o777 == 0o750


def test_error_and_ignore_leave_what_is_there_and_read_nothing(out):
    out.mkdir()  # empty: nothing that could be lost
    write_parquet(dataset_of(*THREE), out, mode="error")
    with pytest.raises(FileExistsError, match=r"mode='overwrite' replaces") as caught:
        write_parquet(dataset_of(_fails_after()), out, mode="error")
    assert str(out) in str(caught.value)
    write_parquet(dataset_of(_fails_after()), out, mode="ignore")
    assert len(_read(out)) == 3


@pytest.mark.parametrize(("mode", "seen"), [("append", [5, 8]), ("error", [8]), ("ignore", [8]), ("overwrite", [5])])
def test_another_writer_who_is_first_loses_nothing(tmp_path, out, mode, seen):

    def meanwhile():
        write_parquet(dataset_of([_rows(8)]), out)
        yield Block(_rows(5))

    if mode == "error":
        with pytest.raises(FileExistsError, match="meanwhile"):
            write_parquet(dataset_of(meanwhile), out, mode="error")
    else:
        write_parquet(dataset_of(meanwhile), out, mode=mode)
    assert sorted(row for rows in _read(out).values() for row in rows) == seen
    assert [name for name in _everything(tmp_path) if "writing" in name] == []


def test_never_replaces_a_file_of_another_writer(out, monkeypatch):
    write_parquet(dataset_of([_rows(0)]), out)
    move, taken = targets._move_file, []

    def late(source, target):
        if not taken and target.name == "part-000002.parquet":
            taken.append(target)
            pq.write_table(Block(_rows(100)).to_arrow(), target)
        move(source, target)

    monkeypatch.setattr(targets, "_move_file", late)
    write_parquet(dataset_of([_rows(1)], [_rows(2)]), out)
    assert _read(out) == {f"part-00000{n}.parquet": [row] for n, row in ((0, 0), (2, 100), (3, 1), (4, 2))}


def test_files_are_added_where_there_are_no_links(out, monkeypatch):
    def link(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    for number in range(3):
        write_parquet(dataset_of([_rows(number)]), out)
    assert sorted(row for rows in _read(out).values() for row in rows) == [0, 1, 2]


def test_a_failure_while_files_are_added_takes_back_those_that_were(tmp_path, out, monkeypatch):
    write_parquet(dataset_of([_rows(0)]), out)
    move = targets._move_file

    def full(source, target):
        if target.name == "part-000002.parquet":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        move(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(targets, "_move_file", full)
        with pytest.raises(OSError, match="No space"):
            write_parquet(dataset_of([_rows(1)], [_rows(2)]), out)
    assert _everything(tmp_path) == ["out", "out/part-000000.parquet"]


KILLED = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from made_datasets import dataset_of
from paceline.data.block import Block
from paceline.data.sinks import targets
from paceline.data.write import write_parquet

place, mode, when = sys.argv[2:]
driver = os.getpid()

def kill_driver():
    os.kill(driver, signal.SIGKILL)
    while True:  # A data process goes with the driver.
        time.sleep(0.01)

def blocks():
    yield Block({"x": [1]})
    if when in ("unit", "data process"):
        kill_driver()

if when == "first move":
    move = targets._move_file
    def first_move(source, target):
        move(source, target)
        kill_driver()
    targets._move_file = first_move
if when == "exchange":
    targets._swap_directories = lambda one, other: False
    rename = Path.rename
    def half(source, target):
        answer = rename(source, target)
        if target.name == "old":
            kill_driver()
        return answer
    Path.rename = half
rows = dataset_of([{"x": [0]}], blocks, [{"x": [2]}], in_processes=when == "data process")
write_parquet(rows, place, mode=mode)
"""


@pytest.fixture
def kill_writer(tmp_path, processes_in):
    """Run a writer that is killed at some moment, and wait until its data processes are gone, too."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "script.py").write_text(KILLED)

    def kill_writer(out, mode, when):
        command = [sys.executable, "script.py", str(Path(__file__).parent), str(out), mode, when]
        ended = subprocess.run(command, cwd=work, timeout=100)
        assert ended.returncode == -signal.SIGKILL
        wait_until(lambda: not processes_in(work))

    return kill_writer


@pytest.mark.parametrize(
    ("mode", "there", "when"),
    [("append", False, "unit"), ("overwrite", True, "unit"), ("append", True, "data process")],
)
def test_a_writer_killed_in_the_middle_leaves_nothing_to_be_seen_and_the_next_works(
    tmp_path, mode, there, when, kill_writer
):
    place = tmp_path / "place"
    place.mkdir()
    out = place / "out"
    if there:
        write_parquet(dataset_of([_rows(7)]), out)
    kill_writer(out, mode, when)
    left = [name for name in os.listdir(place) if name != "out"]
    assert [re.sub("-.*", "", name) for name in left] == [".out.writing"]
    assert _read(out) == ({"part-000000.parquet": [7]} if there else {})
    assert out.exists() == there
    write_parquet(dataset_of([_rows(8)]), out)
    assert sorted(row for rows in _read(out).values() for row in rows) == ([7, 8] if there else [8])
    assert os.listdir(place) == ["out"]


def test_the_next_writer_undoes_what_a_writer_killed_while_publishing_had_changed(tmp_path, kill_writer):
    place = tmp_path / "place"
    out = place / "out"
    write_parquet(dataset_of([_rows(7)]), out)
    kill_writer(out, "append", "first move")
    assert _read(out) == {"part-000000.parquet": [7], "part-000001.parquet": [0]}
    write_parquet(dataset_of([_rows(8)]), out)
    assert _read(out) == {"part-000000.parquet": [7], "part-000001.parquet": [8]}
    assert os.listdir(place) == ["out"]
    kill_writer(out, "overwrite", "exchange")
    assert not out.exists()
    with pytest.raises(FileExistsError):
        write_parquet(dataset_of([_rows(9)]), out, mode="error")
    assert _read(out) == {"part-000000.parquet": [7], "part-000001.parquet": [8]}
    assert os.listdir(place) == ["out"]


def test_the_staging_of_others_is_left_alone_unless_it_is_old(tmp_path):
    out, notes = tmp_path / "out", tmp_path / ".out.writing-notes"
    notes.mkdir()
    with targets.LocalSinkTarget(out).open_staging(overwrite=False) as living:
        write_parquet(dataset_of([_rows(8)]), out)
        assert living.exists()
    for age_s in (0.0, targets.ABANDONED_AFTER_S + 60):
        remote = tmp_path / f".out.writing-{'0' * 16}-1-1-abcdef"  # of another machine
        (remote / "files").mkdir(parents=True, exist_ok=True)
        changed = remote.stat().st_mtime - age_s
        for path in (remote / "files", remote):
            os.utime(path, (changed, changed))
        write_parquet(dataset_of([_rows(8)]), out)
        assert remote.exists() == (age_s == 0.0)
    assert sorted(os.listdir(tmp_path)) == [notes.name, "out"]


def test_files_are_staged_inside_where_the_directory_above_cannot_be_written(out, monkeypatch):
    write_parquet(dataset_of([_rows(7)]), out)
    monkeypatch.setattr(targets.LocalSinkTarget, "_can_stage_beside", lambda self: False)
    seen = []

    def looking():
        seen.extend(os.listdir(out))
        yield Block(_rows(8))

    write_parquet(dataset_of(looking), out)
    assert any(name.startswith(".writing-") for name in seen)
    assert _read(out) == {"part-000000.parquet": [7], "part-000001.parquet": [8]}
    assert len(os.listdir(out)) == 2


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=5), *[st.none() | st.integers(1, 6)] * 2)
def test_no_row_is_lost_or_changes_its_place_whatever_the_sizes(tmp_path_factory, units, least, most):
    out = tmp_path_factory.mktemp("sizes") / "out"
    total = sum(map(sum, units))
    if least is not None and most is not None and least > most:
        least, most = most, least
    rows = numbers(*units).rename_columns({"id": "x"})
    write_parquet(rows, out, min_rows_per_file=least, max_rows_per_file=most)
    files = list(_read(out).values())
    assert [row for rows in files for row in rows] == list(range(total))
    assert all(len(rows) <= (most or total) for rows in files)
    assert all(len(rows) >= (least or 1) for rows in files[:-1])


@pytest.mark.parametrize("units", [(), ([_rows()], [])])
def test_an_empty_dataset_makes_an_empty_directory(tmp_path, units):
    write_parquet(dataset_of(*units), tmp_path / "out")
    assert _everything(tmp_path) == ["out"]
    write_parquet(dataset_of([_rows(1)]), tmp_path / "out")
    write_parquet(dataset_of(*units), tmp_path / "out", mode="overwrite")
    assert _everything(tmp_path) == ["out"]


def test_numbers_of_files_go_on_in_each_directory_and_grow_wider_so_that_their_order_stays():
    assert next_free_numbers(["part-000001.csv", "7.csv", "part-x.csv", "a=1/part-000004.csv.gz"]) == {"": 2, "a=1": 5}
    names = number_files([("", ".png")] * 3, {"": 999_999})
    assert names == ["part-0999999.png", "part-1000000.png", "part-1000001.png"]


def test_a_path_that_is_no_directory_is_refused(tmp_path):
    (tmp_path / "out").write_text("notes")
    with pytest.raises(NotADirectoryError, match="path must be a directory, got the file"):
        write_parquet(dataset_of([_rows(1)]), tmp_path / "out", mode="overwrite")
    assert (tmp_path / "out").read_text() == "notes"
    with pytest.raises(ValueError, match="path must be the name of a directory"):
        write_csv(dataset_of([_rows(1)]), "")
    with pytest.raises(TypeError, match="must be a path"):
        write_csv(dataset_of([_rows(1)]), 7)


def test_uris_and_filesystems_of_this_machine_lead_to_directories(tmp_path):
    write_json(dataset_of([_rows(1)]), f"file://{tmp_path}/a")
    write_json(dataset_of([_rows(1)]), str(tmp_path / "b"), filesystem=LocalFileSystem())
    write_json(dataset_of([_rows(1)]), str(tmp_path / "c"), filesystem=fsspec.filesystem("file"))
    for name in "abc":
        assert json.loads((tmp_path / name / "part-000000.json").read_text()) == {"x": 1}
