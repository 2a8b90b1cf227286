"""A worker's log, read in pieces, and its reports that were not sent."""

from pathlib import Path

import pytest
from msgspec import Raw

from paceline._core.checkpoint_records import StagedFiles
from paceline._core.codec import seal_line
from paceline._engine.messages import CheckpointStaged, Reported, WorkerInit, encode_message
from paceline._engine.ray import worker_files
from paceline._engine.ray.worker_files import WorkerLogTail, append_to_log
from paceline._storage.run_layout import RunLayout


def _read_all(log: WorkerLogTail) -> list[bytes]:
    pieces = []
    while piece := log.read_next():
        pieces.append(piece)
    return pieces


def test_forwards_all_output_in_bounded_pieces(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(worker_files, "MAX_PIECE_BYTES", 10)
    log = WorkerLogTail(tmp_path / "log")
    assert log.read_next() == b""
    (tmp_path / "log").write_bytes(b"x" * 25)
    pieces = _read_all(log)
    assert [len(piece) for piece in pieces] == [10, 10, 5]
    with (tmp_path / "log").open("ab") as file:
        file.write(b"more")
    assert _read_all(log) == [b"more"]
    append_to_log(tmp_path / "driver" / "log", b"".join(pieces))
    append_to_log(tmp_path / "driver" / "log", b"more")
    assert (tmp_path / "driver" / "log").read_bytes() == (tmp_path / "log").read_bytes()
    assert (tmp_path / "driver" / "log").stat().st_mode & 0o077 == 0


def test_notes_how_much_output_was_dropped(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(worker_files, "MAX_BACKLOG_BYTES", 1000)
    log = WorkerLogTail(tmp_path / "log")
    (tmp_path / "log").write_bytes(b"x" * 5000 + b"the end")
    output = b"".join(_read_all(log))
    assert output.startswith(b"\n... 4507 bytes of output dropped ...\n")
    assert output.endswith(b"the end")
    assert len(output) < 600


@pytest.fixture
def begin(tmp_path: Path) -> WorkerInit:
    return WorkerInit("run", str(tmp_path), 1, 2, 3, 0, 1, 0, 0, 1)


def _reported(seq: int) -> Reported:
    return Reported(1, 2, seq, Raw(b"{}"), 0.0, "x.py:1")


def test_reads_unsent_reports_from_the_end_of_the_workers_file(begin: WorkerInit, tmp_path: Path, monkeypatch) -> None:
    assert worker_files.read_unsent_reports(begin, 0) == []
    staged = CheckpointStaged(1, 2, StagedFiles(2, ()))
    path = RunLayout(tmp_path).reports(1, 2)
    path.parent.mkdir(parents=True)
    lines = [seal_line(encode_message(message)) for message in (_reported(1), _reported(2), staged, _reported(3))]
    path.write_bytes(b"".join(lines) + lines[0][:20])
    assert worker_files.read_unsent_reports(begin, 1) == [_reported(2), staged, _reported(3)]
    assert worker_files.read_unsent_reports(begin, 3) == [staged]
    monkeypatch.setattr(worker_files, "_TAIL_BYTES", 1000)
    path.write_bytes(b"".join(seal_line(encode_message(_reported(seq))) for seq in range(1, 101)))
    assert worker_files.read_unsent_reports(begin, 97) == [_reported(seq) for seq in (98, 99, 100)]
