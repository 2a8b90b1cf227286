"""A log is bounded on the disk, and its readers see what was left out."""

import os
import uuid

import pytest

from paceline import train
from paceline._storage import log_files
from paceline._storage.files import LocalFiles
from paceline._storage.lease import UNFENCED
from paceline._storage.log_files import open_whole_log, trim_log
from paceline._storage.run_location import RunLocation
from paceline._view import logs
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig

LIMIT = 1 << 20
LINE = b"line %06d " + 80 * b"." + b"\n"


def read_lines(location):
    forwards, after = [], 0
    while (page := logs.read_log_page(location, 1, 0, after=after)).lines:
        forwards, after = [*forwards, *(line.text for line in page.lines)], page.after
    backwards, before = [], None
    while before != 0 and (page := logs.read_log_page(location, 1, 0, before=before)).lines:
        backwards, before = [*(line.text for line in page.lines), *backwards], page.before or 0
    assert forwards == backwards
    return forwards


def test_a_log_keeps_its_first_part_and_its_latest_output_and_says_how_much_is_missing(tmp_path):
    location = RunLocation.from_path(str(tmp_path / "run"))
    path = location.layout.log(1, 0)
    path.parent.mkdir(parents=True)
    number = 0
    with path.open("ab", buffering=0) as file:  # As a worker has it open.
        for _ in range(3):
            file.write(b"".join(LINE % each for each in range(number, number + 60_000)))
            number += 60_000
            trim_log(path, LIMIT)
            assert path.stat().st_blocks * 512 <= LIMIT
            lines = read_lines(location)
            (note,) = [at for at, line in enumerate(lines) if "bytes left out" in line]
            kept = sum(len(line) + 1 for line in lines) - len(lines[note]) - 2
            assert int(lines[note].split()[1]) == pytest.approx(path.stat().st_size - kept, abs=200)
            numbered = [int(line.split()[1]) for line in lines if line.startswith("line ") and len(line.split()) > 1]
            assert numbered[:1000] == list(range(1000))
            assert numbered[-4000:] == list(range(number - 4000, number))
        with open_whole_log(path) as whole:
            assert whole.read_bytes().decode().splitlines() == [line for line in lines if line]
    assert os.listdir(path.parent) == ["rank_0.log"]


def test_only_what_is_kept_of_a_log_is_uploaded(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path))
    location = RunLocation("memory://logs", uuid.uuid4().hex)
    run_store = location.open_run_store(LocalFiles(), is_new=True, fence=UNFENCED)
    log = location.layout.log(1, 0)
    log.parent.mkdir(parents=True)
    log.write_bytes(b"first\n" + 5 * LIMIT * b"x" + b"\nlast\n")
    location.layout.journal.touch()
    trim_log(log, LIMIT)
    run_store.close()
    stored = location.open_store().read("logs/attempt_1/rank_0.log")
    assert len(stored) < LIMIT
    assert b"\0" not in stored
    assert (stored[:6], stored[-5:], stored.count(b"bytes left out")) == (b"first\n", b"last\n", 1)


def test_where_nothing_can_be_freed_the_log_is_cut_after_its_first_part(tmp_path, monkeypatch):
    monkeypatch.setattr(log_files, "_free_range", lambda fd, start, length: False)
    path = tmp_path / "rank_0.log"
    path.write_bytes(b"x" * 3 * LIMIT)
    trim_log(path, LIMIT)
    head, note, _ = path.read_bytes().split(b"\n")
    assert head == b"x" * (LIMIT // 4)
    assert note.startswith(b"... %d bytes left out" % (3 * LIMIT - LIMIT // 4))


def test_the_log_of_a_run_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_LOG_LIMIT_MB", "1")

    def function():
        for number in range(50_000):
            print((LINE % number).decode(), end="")
        train.report({})

    result = DataParallelTrainer(
        function, scaling_config=ScalingConfig(1), run_config=RunConfig(name="run", storage_path=tmp_path)
    ).fit()
    assert (result.log_dir / "attempt_1" / "rank_0.log").stat().st_blocks * 512 <= 1e6
