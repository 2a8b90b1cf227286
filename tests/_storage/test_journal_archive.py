"""A compressed journal has the lines it had before, whatever happens while it is compressed."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path

import msgspec
import pytest

from paceline._control.events import DriverStarted, Event, Reported, encode_event
from paceline._control.journal import JournalReader, read_events, reopen_journal
from paceline._core.codec import seal_line
from paceline._core.errors import StorageError
from paceline._engine.messages import WorkerReady, WorkerReturned, WorkersStopped
from paceline._storage import journal_archive
from paceline._storage.files import LocalFiles
from paceline._storage.journal_archive import archive_journal, iter_journal_blocks
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import DiskRunStore
from paceline._view.run_reader import RunReader

RAW = msgspec.Raw(b'{"loss":0.5}')
STORY: list[Event] = [
    DriverStarted(1, 0, at=1.0),
    WorkerReady(1, 0, 7),
    *(Reported(1, 0, seq, RAW, float(seq), "x.py:1") for seq in range(1, 200)),
    WorkerReturned(1, 0, 199),
    WorkersStopped(1),
]


class Crash(BaseException):
    pass


class CrashingFiles(LocalFiles):
    """Crashes before one of the calls that change something."""

    def __init__(self, at: int) -> None:
        self.num_left = at

    def _count(self) -> None:
        self.num_left -= 1
        if self.num_left < 0:
            raise Crash

    def write(self, path: Path, data: bytes) -> None:
        self._count()
        super().write(path, data)

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)

    def sync_dir(self, path: Path) -> None:
        self._count()
        super().sync_dir(path)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(journal_archive, "_MEMBER_BYTES", 3000)
    monkeypatch.setattr(journal_archive, "BLOCK_BYTES", 1000)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"".join(seal_line(encode_event(event)) for event in STORY))
    return path


def test_an_archived_journal_reads_as_before_and_can_be_continued(path: Path) -> None:
    content = path.read_bytes()
    archive_journal(LocalFiles(), path)
    archive = path.with_name("journal-000001.jsonl.gz")
    assert path.stat().st_size < 200
    assert archive.stat().st_size < len(content) / 4
    assert subprocess.run(["zcat", archive], capture_output=True, check=True).stdout == content
    assert read_events(path) == STORY
    assert b"".join(iter_journal_blocks(path)) == content
    for number in (2, 3):
        reader = JournalReader(path)
        assert len(list(reader)) == reader.num_lines
        journal = reopen_journal(reader)
        journal.append(DriverStarted(1, 0, lease=number))
        journal.close()
        content += seal_line(encode_event(DriverStarted(1, 0, lease=number)))
        assert b"".join(iter_journal_blocks(path)) == content
        archive_journal(LocalFiles(), path)
        assert b"".join(iter_journal_blocks(path)) == content
    assert len(list(path.parent.glob("journal-*.jsonl.gz"))) == 3


def test_a_crash_at_any_call_leaves_a_journal_that_reads_the_same(path: Path) -> None:
    for at in range(10):
        try:
            archive_journal(CrashingFiles(at), path)
        except Crash:
            assert read_events(path) == STORY, at
        else:
            break
    assert at == 5, "all calls were tried"
    assert read_events(path) == STORY
    assert sorted(each.name for each in path.parent.iterdir()) == ["journal-000001.jsonl.gz", "journal.jsonl"]


def test_a_reader_that_follows_sees_no_difference(path: Path) -> None:
    reader = RunReader(path.parent)
    reader.refresh()
    before, rows = reader.summary(), list(reader.rows())
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    other = RunReader(path.parent)
    other.refresh()
    path.write_bytes(content)
    archive_journal(LocalFiles(), path)
    for each in (reader, other, RunReader(path.parent)):
        each.refresh()
        assert each.summary() == before
        assert list(each.rows()) == rows
        assert each.problem is None


@pytest.mark.parametrize("damage", ["missing", "cut", "altered"])
def test_a_damaged_archive_is_an_error_and_not_a_shorter_run(path: Path, damage: str) -> None:
    archive_journal(LocalFiles(), path)
    archive = path.with_name("journal-000001.jsonl.gz")
    data = archive.read_bytes()
    if damage == "missing":
        archive.unlink()
    elif damage == "cut":
        archive.write_bytes(data[: len(data) // 2])
    else:
        lines = gzip.decompress(data).replace(b'"loss":0.5', b'"loss":0.6')
        archive.write_bytes(gzip.compress(lines))
    with pytest.raises(StorageError, match=r"journal-000001.jsonl.gz, a part of .* is (missing|damaged)"):
        read_events(path)
    reader = RunReader(path.parent)
    reader.refresh()
    assert reader.problem is not None


def test_no_name_leads_out_of_the_run(path: Path) -> None:
    line = b'{"type":"journal_archived","file":"../journal-000001.jsonl.gz","num_lines":1,"num_bytes":1,"crc":1}'
    path.write_bytes(seal_line(line))
    with pytest.raises(StorageError, match="is not the name of a part"):
        read_events(path)


def test_the_files_of_workers_go_when_their_reports_are_archived(path: Path) -> None:
    layout = RunLayout(path.parent)
    layout.reports(1, 0).parent.mkdir(parents=True)
    layout.reports(1, 0).write_bytes(b"".join(seal_line(encode_event(event)) for event in STORY[2:-2]))
    store = DiskRunStore(LocalFiles(), layout)
    store.archive_journal()
    assert not (layout.root / "reports").exists()
    assert store.read_journal().count(b"\n") == len(STORY)
