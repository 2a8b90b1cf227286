"""What all writers have in common: nothing half done is ever seen, modes, names, sizes of files."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows_in_units import dataset_of

from paceline.data.block import Block
from paceline.data.sinks import local, staging
from paceline.data.sinks.staging import free_numbers, numbered
from paceline.data.write import SaveMode, write_csv, write_json, write_numpy, write_parquet


def _rows(*numbers: int) -> dict[str, Any]:
    return {"x": np.array(numbers, np.int64)}


def _read(path: Path) -> dict[str, list[int]]:
    """The rows of each file that can be seen."""
    return {
        str(file.relative_to(path)): pq.ParquetFile(file).read().column("x").to_pylist()
        for file in sorted(path.rglob("*.parquet"))
    }


def _everything(path: Path) -> list[str]:
    return sorted(str(one.relative_to(path)) for one in path.rglob("*"))


def _fails_after(*numbers: int) -> Callable[[], Iterator[Block]]:
    def blocks() -> Iterator[Block]:
        yield Block(_rows(*numbers))
        raise RuntimeError("the disk of the reader is broken")

    return blocks


THREE = ([_rows(0, 1)], [_rows(2), _rows(3)], [_rows(4)])


def test_a_unit_is_a_file_and_files_are_numbered_in_the_order_of_rows(tmp_path: Path) -> None:
    write_parquet(dataset_of(*THREE), tmp_path / "out")
    assert _read(tmp_path / "out") == {
        "part-000000.parquet": [0, 1],
        "part-000001.parquet": [2, 3],
        "part-000002.parquet": [4],
    }
    assert _everything(tmp_path) == ["out", *(f"out/part-00000{n}.parquet" for n in range(3))]


def test_two_writes_of_one_dataset_give_equal_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_parquet(dataset_of(*THREE), tmp_path / name)
    one, two = ([file.read_bytes() for file in sorted((tmp_path / name).iterdir())] for name in ("one", "two"))
    assert one == two


def test_directories_above_the_target_are_made_and_not_left_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        write_parquet(dataset_of([_rows(0)], _fails_after(1, 2)), tmp_path / "a" / "b" / "out")
    assert _everything(tmp_path) == []
    write_parquet(dataset_of([_rows(0)]), tmp_path / "a" / "b" / "out")
    assert _read(tmp_path / "a" / "b" / "out") == {"part-000000.parquet": [0]}


@pytest.mark.parametrize("mode", list(SaveMode))
def test_a_failure_in_the_middle_of_a_unit_leaves_what_was_there(tmp_path: Path, mode: SaveMode) -> None:
    out = tmp_path / "out"
    if mode in (SaveMode.APPEND, SaveMode.OVERWRITE):
        write_parquet(dataset_of([_rows(7)]), out)
    before = _everything(tmp_path)
    with pytest.raises(RuntimeError, match="broken"):
        write_parquet(dataset_of([_rows(0)], _fails_after(1, 2)), out, mode=mode)
    assert _everything(tmp_path) == before
    write_parquet(dataset_of([_rows(1)]), out, mode=mode)
    assert 1 in [row for rows in _read(out).values() for row in rows]


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> Iterator[Block]:
        yield Block(_rows(1))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_parquet(dataset_of([_rows(0)], interrupted), tmp_path / "out")
    assert _everything(tmp_path) == []


# Modes


def test_append_adds_after_the_highest_number(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_parquet(dataset_of(*THREE), out)
    write_parquet(dataset_of([_rows(5)], [_rows(6)]), out)
    assert [row for rows in _read(out).values() for row in rows] == [0, 1, 2, 3, 4, 5, 6]
    assert list(_read(out))[-1] == "part-000004.parquet"


def test_overwrite_replaces_all_that_was_there(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_parquet(dataset_of(*THREE), out)
    (out / "notes.txt").write_text("old")
    out.chmod(0o750)
    write_parquet(dataset_of([_rows(9)]), out, mode="overwrite")
    assert _everything(tmp_path) == ["out", "out/part-000000.parquet"]
    assert _read(out) == {"part-000000.parquet": [9]}
    assert out.stat().st_mode & 0o777 == 0o750


def test_overwrite_works_where_directories_cannot_be_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_PORTABLE", "1")
    out = tmp_path / "out"
    write_parquet(dataset_of(*THREE), out)
    write_parquet(dataset_of([_rows(9)]), out, mode="overwrite")
    assert _everything(tmp_path) == ["out", "out/part-000000.parquet"]


def test_error_refuses_and_says_what_else_there_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()  # empty: nothing that could be lost
    write_parquet(dataset_of(*THREE), out, mode="error")
    with pytest.raises(FileExistsError, match=r"mode='overwrite' replaces") as caught:
        write_parquet(dataset_of([_rows(9)]), out, mode="error")
    assert str(out) in str(caught.value)
    assert len(_read(out)) == 3


def test_ignore_leaves_what_is_there_and_reads_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_parquet(dataset_of(*THREE), out, mode="ignore")
    write_parquet(dataset_of(_fails_after()), out, mode="ignore")
    assert len(_read(out)) == 3


@pytest.mark.parametrize(("mode", "seen"), [("append", [5, 8]), ("error", [8]), ("ignore", [8]), ("overwrite", [5])])
def test_another_writer_who_is_first_loses_nothing(tmp_path: Path, mode: str, seen: list[int]) -> None:
    out = tmp_path / "out"

    def meanwhile() -> Iterator[Block]:
        write_parquet(dataset_of([_rows(8)]), out)
        yield Block(_rows(5))

    if mode == "error":
        with pytest.raises(FileExistsError, match="meanwhile"):
            write_parquet(dataset_of(meanwhile), out, mode="error")
    else:
        write_parquet(dataset_of(meanwhile), out, mode=mode)  # type: ignore[arg-type]
    assert sorted(row for rows in _read(out).values() for row in rows) == seen
    assert [name for name in _everything(tmp_path) if "writing" in name] == []


def test_a_name_that_another_writer_took_is_not_taken_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    write_parquet(dataset_of([_rows(0)]), out)
    move, taken = local._moved, []

    def late(source: Path, target: Path) -> None:
        if not taken and target.name == "part-000002.parquet":
            taken.append(target)
            pq.write_table(Block(_rows(100)).to_arrow(), target)
        move(source, target)

    monkeypatch.setattr(local, "_moved", late)
    write_parquet(dataset_of([_rows(1)], [_rows(2)]), out)
    assert _read(out) == {
        "part-000000.parquet": [0],
        "part-000002.parquet": [100],
        "part-000003.parquet": [1],
        "part-000004.parquet": [2],
    }


def test_files_are_added_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    out = tmp_path / "out"
    for number in range(3):
        write_parquet(dataset_of([_rows(number)]), out)
    assert sorted(row for rows in _read(out).values() for row in rows) == [0, 1, 2]


def test_a_failure_while_files_are_added_takes_back_those_that_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write_parquet(dataset_of([_rows(0)]), out)
    move = local._moved

    def full(source: Path, target: Path) -> None:
        if target.name == "part-000002.parquet":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        move(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(local, "_moved", full)
        with pytest.raises(OSError, match="No space"):
            write_parquet(dataset_of([_rows(1)], [_rows(2)]), out)
    assert _everything(tmp_path) == ["out", "out/part-000000.parquet"]


# Kills

KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from rows_in_units import dataset_of
from paceline.data.block import Block
from paceline.data.sinks import local
from paceline.data.write import write_parquet

place, mode, when = sys.argv[2:]

def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def blocks():
    yield Block({"x": [1]})
    if when == "unit":
        killed()

if when == "first move":
    move, moved = local._moved, []
    def first_move(source, target):
        move(source, target)
        killed()
    local._moved = first_move
if when == "exchange":
    local._exchanged = lambda one, other: False
    rename = Path.rename
    def half(source, target):
        answer = rename(source, target)
        if target.name == "old":
            killed()
        return answer
    Path.rename = half
write_parquet(dataset_of([{"x": [0]}], blocks, [{"x": [2]}]), place, mode=mode)
"""


def _killed(tmp_path: Path, out: Path, mode: str, when: str) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    tests = str(Path(__file__).parent)
    ended = subprocess.run([sys.executable, str(script), tests, str(out), mode, when], timeout=60)
    assert ended.returncode == -signal.SIGKILL
    script.unlink()


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("there", [False, True])
def test_a_writer_killed_in_the_middle_leaves_nothing_to_be_seen_and_the_next_works(
    tmp_path: Path, mode: str, there: bool
) -> None:
    out = tmp_path / "out"
    if there:
        write_parquet(dataset_of([_rows(7)]), out)
    _killed(tmp_path, out, mode, "unit")
    left = [name for name in os.listdir(tmp_path) if name != "out"]
    assert [re.sub("-.*", "", name) for name in left] == [".out.writing"]
    assert (_read(out) if there else out.exists()) == ({"part-000000.parquet": [7]} if there else False)
    write_parquet(dataset_of([_rows(8)]), out)
    assert sorted(row for rows in _read(out).values() for row in rows) == ([7, 8] if there else [8])
    assert os.listdir(tmp_path) == ["out"]


def test_what_a_writer_killed_in_the_last_moment_had_added_is_taken_back_by_the_next(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_parquet(dataset_of([_rows(7)]), out)
    _killed(tmp_path, out, "append", "first move")
    assert _read(out) == {"part-000000.parquet": [7], "part-000001.parquet": [0]}
    write_parquet(dataset_of([_rows(8)]), out)
    assert _read(out) == {"part-000000.parquet": [7], "part-000001.parquet": [8]}
    assert os.listdir(tmp_path) == ["out"]


def test_a_directory_that_a_killed_writer_had_set_aside_is_put_back(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_parquet(dataset_of([_rows(7)]), out)
    _killed(tmp_path, out, "overwrite", "exchange")
    assert not out.exists()
    with pytest.raises(FileExistsError):
        write_parquet(dataset_of([_rows(8)]), out, mode="error")
    assert _read(out) == {"part-000000.parquet": [7]}
    assert os.listdir(tmp_path) == ["out"]


def test_the_staging_of_a_writer_that_lives_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with local.LocalPlace(out).staging(overwrite=False) as theirs:
        write_parquet(dataset_of([_rows(8)]), out)
        assert theirs.exists()
    assert os.listdir(tmp_path) == ["out"]


def test_the_staging_of_another_machine_is_swept_when_it_is_old(tmp_path: Path) -> None:
    for age_s in (0.0, staging.ABANDONED_S + 60):
        theirs = tmp_path / f".out.writing-{'0' * 16}-1-1-abcdef"
        (theirs / "files").mkdir(parents=True, exist_ok=True)
        changed = theirs.stat().st_mtime - age_s
        for path in (theirs / "files", theirs):
            os.utime(path, (changed, changed))
        write_parquet(dataset_of([_rows(8)]), tmp_path / "out")
        assert theirs.exists() == (age_s == 0.0)


def test_a_directory_of_somebody_else_is_never_swept(tmp_path: Path) -> None:
    (tmp_path / ".out.writing-notes").mkdir()
    write_parquet(dataset_of([_rows(8)]), tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == [".out.writing-notes", "out"]


def test_files_are_staged_inside_where_the_directory_above_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write_parquet(dataset_of([_rows(7)]), out)
    monkeypatch.setattr(local.LocalPlace, "_is_free_beside", lambda self: False)
    seen: list[str] = []

    def looking() -> Iterator[Block]:
        seen.extend(os.listdir(out))
        yield Block(_rows(8))

    write_parquet(dataset_of(looking), out)
    assert any(name.startswith(".writing-") for name in seen)
    assert _read(out) == {"part-000000.parquet": [7], "part-000001.parquet": [8]}
    assert len(os.listdir(out)) == 2


# Sizes


def test_a_file_has_at_most_so_many_rows(tmp_path: Path) -> None:
    units = ([_rows(*range(5)), _rows(5, 6)], [_rows(7)])
    write_parquet(dataset_of(*units), tmp_path / "out", max_rows_per_file=3)
    assert list(_read(tmp_path / "out").values()) == [[0, 1, 2], [3, 4, 5], [6], [7]]


def test_units_go_to_one_file_until_it_has_enough_rows(tmp_path: Path) -> None:
    units = [[_rows(number)] for number in range(7)]
    write_parquet(dataset_of(*units), tmp_path / "out", min_rows_per_file=3)
    assert list(_read(tmp_path / "out").values()) == [[0, 1, 2], [3, 4, 5], [6]]


def test_both_limits_hold_together(tmp_path: Path) -> None:
    units = ([_rows(0)], [_rows(*range(1, 8))], [_rows(8)], [_rows(9)])
    write_parquet(dataset_of(*units), tmp_path / "out", min_rows_per_file=2, max_rows_per_file=3)
    assert list(_read(tmp_path / "out").values()) == [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=5),
    st.none() | st.integers(1, 6),
    st.none() | st.integers(1, 6),
)
def test_no_row_is_lost_or_changes_its_place_whatever_the_sizes(
    tmp_path_factory: pytest.TempPathFactory, units: list[list[int]], least: int | None, most: int | None
) -> None:
    out = tmp_path_factory.mktemp("sizes") / "out"
    made: list[list[dict[str, Any]]] = []
    total = 0
    for sizes in units:
        made.append([_rows(*range(sum(sizes[:i]) + total, sum(sizes[: i + 1]) + total)) for i in range(len(sizes))])
        total += sum(sizes)
    if least is not None and most is not None and least > most:
        least, most = most, least
    write_parquet(dataset_of(*made), out, min_rows_per_file=least, max_rows_per_file=most)
    files = list(_read(out).values())
    assert [row for rows in files for row in rows] == list(range(total))
    assert all(len(rows) <= (most or total) for rows in files)
    assert all(len(rows) >= (least or 1) for rows in files[:-1])


@pytest.mark.parametrize("units", [(), ([],), ([_rows()], [])])
def test_an_empty_dataset_makes_an_empty_directory(tmp_path: Path, units: Any) -> None:
    write_parquet(dataset_of(*units), tmp_path / "out")
    assert _everything(tmp_path) == ["out"]
    write_parquet(dataset_of(*units), tmp_path / "out")
    assert _everything(tmp_path) == ["out"]
    write_parquet(dataset_of([_rows(1)]), tmp_path / "out")
    write_parquet(dataset_of(*units), tmp_path / "out", mode="overwrite")
    assert _everything(tmp_path) == ["out"]


# Names


def test_numbers_of_files_grow_wider_so_that_their_order_stays() -> None:
    names = numbered([("", ".png")] * 3, {"": 999_999})
    assert names == ["part-0999999.png", "part-1000000.png", "part-1000001.png"]


@given(st.lists(st.sampled_from(["", "a=1", "a=1/b=2"]), max_size=20), st.lists(st.sampled_from(["", "a=1"])))
def test_names_are_new_and_in_order_in_each_directory(old: list[str], new: list[str]) -> None:
    there = numbered([(directory, ".csv.gz") for directory in old], {})
    more = numbered([(directory, ".csv.gz") for directory in new], free_numbers([*there, "notes.txt", "part-x.csv"]))
    assert len({*there, *more}) == len(there) + len(more)
    for directory in set(new):
        mine = [name for name in [*there, *more] if name.rpartition("/")[0] == directory]
        assert mine == sorted(mine)


# What callers get wrong


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"mode": "replace"}, r"mode='replace' is not known: it must be one of 'append', 'overwrite', 'error'"),
        ({"min_rows_per_file": 0}, r"min_rows_per_file=0 must be a whole number from 1 on"),
        ({"max_rows_per_file": 2.5}, r"max_rows_per_file=2\.5 must be"),
        ({"min_rows_per_file": 5, "max_rows_per_file": 4}, "is more than max_rows_per_file=4"),
        ({"partition_cols": "x"}, r"must be a list of columns: \['x'\]"),
        ({"partition_cols": ["x", "x"]}, "twice"),
        ({"concurrency": -1}, "concurrency=-1"),
        ({"compression": "zip"}, "zip"),
        ({"row_group_size": 0}, "row_group_size=0"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_argument_is_named_at_once(tmp_path: Path, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        write_parquet(dataset_of(_fails_after()), tmp_path / "out", **arguments)
    assert _everything(tmp_path) == []


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("notes")
    with pytest.raises(NotADirectoryError, match="is a file: rows are written to a directory"):
        write_parquet(dataset_of([_rows(1)]), tmp_path / "out", mode="overwrite")
    assert (tmp_path / "out").read_text() == "notes"


@pytest.mark.parametrize(("path", "said"), [("", "empty"), (7, "must be a path")])
def test_a_path_must_be_one(path: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        write_csv(dataset_of([_rows(1)]), path)


def test_a_link_to_a_directory_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write_parquet(dataset_of([_rows(1)]), tmp_path / "link", mode="overwrite")
    assert (tmp_path / "link").is_symlink()
    assert _read(tmp_path / "real") == {"part-000000.parquet": [1]}


def test_uris_and_filesystems_of_this_machine_lead_to_directories(tmp_path: Path) -> None:
    import fsspec
    from pyarrow.fs import LocalFileSystem

    write_json(dataset_of([_rows(1)]), f"file://{tmp_path}/a")
    write_json(dataset_of([_rows(1)]), str(tmp_path / "b"), filesystem=LocalFileSystem())
    write_json(dataset_of([_rows(1)]), str(tmp_path / "c"), filesystem=fsspec.filesystem("file"))
    for name in "abc":
        assert json.loads((tmp_path / name / "part-000000.json").read_text()) == {"x": 1}


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="no column 'y'; there are: 'x'"):
        write_numpy(dataset_of([_rows(1)]), tmp_path / "out", column="y")
    assert _everything(tmp_path) == []
