"""The journal: what was appended is read back, in order, up to the first line that is torn or altered."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from paceline._control import events, journal
from paceline._control.events import JOURNAL_VERSION, DriverStarted, Event
from paceline._control.journal import Journal, JournalVersionError
from paceline._control.recovery import load_history
from paceline._core.checkpoint_records import CheckpointRecord, FileEntry, StagedFiles, ValidationTask
from paceline._core.codec import seal_line
from paceline._core.errors import StorageError
from paceline._core.reductions import ReductionMark
from paceline._engine import messages
from paceline._engine.messages import WorkerFailed, WorkerFailure, WorkerReturned
from paceline._storage import files
from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import DiskRunStore

TASK = ValidationTask(msgspec.Raw(b'{"split":"test"}'), timeout_s=60.0)
RECORD = CheckpointRecord(
    1, "checkpoint_000001", 1, msgspec.Raw(b'{"loss":{"$number":"nan"}}'), 12, TASK, "PENDING_VALIDATION"
)

USE = messages.RankUsage(
    1, 0.5, 1 << 20, (messages.GpuUsage(3, 1, 2, 0.5),), 2.0, pid=100, host="node-a", device="cuda:0"
)
RETENTION = events.Retention(2, "loss", "min")

STORY: list[Event] = [
    events.CheckpointsFound((RECORD,)),
    DriverStarted(2, 1, RETENTION, at=1.5, pid=7, host="node-a", initial="/elsewhere", validates=True, pinned=(1,)),
    events.CheckpointBroken(2, 1, "a.bin is missing\r\nand b.bin too\u2028"),
    events.CheckpointVerified(2, 1),
    messages.WorkerReady(2, 0, 100),
    messages.Reported(2, 0, 2, msgspec.Raw(b'{"loss":0.1}'), 2.25, "train.py:3 in train_fn", "checkpoint_000002", TASK),
    messages.Reported(2, 0, 3, msgspec.Raw(b"{}"), 0.5, "x.py:1", reduce=(ReductionMark(("a", "b"), "mean", 3),)),
    messages.CheckpointStaged(2, 2, StagedFiles(0, (FileEntry("a.bin", 3, "ff"),), in_place=True)),
    messages.StagingFailed(2, 1, 2, "[Errno 28] No space left on device"),
    events.Committed(RECORD),
    events.CommitFailed(2, 2, "OSError: no space left"),
    events.RetentionSet(1, RETENTION),
    events.PinsSet(2, (1, 2)),
    events.ValidationEnded(1, 1, "checkpoint_000001", "VALIDATED", msgspec.Raw(b'{"accuracy":0.5}')),
    events.StopRequested(2),
    events.PreemptionNoticeReceived(2, 30.0, (1,), includes_driver=False),
    events.CapacityChanged(2, 1),
    messages.WorkerHeld(2, 0, 2),
    messages.ExitDelayed(2, 0, "thread 'prefetch' at train.py:7", 10.0),
    WorkerReturned(2, 0, 2, "train.py:9", stopped=True, value=msgspec.Raw(b"[1]")),
    events.HangSuspected(2, WorkerFailure(1, "hang", "rank 1 has been stuck at train.py:3"), "restart"),
    events.HangCleared(2, 1, 61.5),
    events.DeadlinePassed(2),
    events.ResizeDue(2),
    WorkerFailed(2, 1, WorkerFailure(1, "user", "ValueError: no", frames=("train.py:3 in train_fn",))),
    events.WorkersStopped(2),
    events.RunDescribed(msgspec.Raw(b'{"config":{"lr":0.1}}')),
    events.Timestamp(1.5),
    events.UsageMeasured(2, 2.5, (USE,), (events.StageUse("train", "read", 10, limits=True),), consumers_wait=True),
    events.DiagnosticFileWritten("flame", "profiles/rank_0.svg", 0, 3.5, 10.0),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


@pytest.fixture
def journal_file(path: Path) -> Iterator[Journal]:
    opened = Journal(path)
    yield opened
    opened.close()


def write_journal(path: Path, events: list[Event]) -> bytes:
    journal_file = Journal(path)
    for event in events:
        journal_file.append(event)
    journal_file.close()
    return path.read_bytes()


def reopen(path: Path) -> tuple[Journal, list[Event]]:
    """As the next driver of the run does."""
    reader = journal.JournalReader(path)
    events_before = list(reader)
    return journal.reopen_journal(reader), events_before


def test_every_kind_of_event_is_read_back_as_it_was(path: Path) -> None:
    assert journal.read_events(path) == []
    assert not path.exists()
    assert {type(event) for event in STORY} == set(Event.__args__)
    write_journal(path, STORY)
    assert journal.read_events(path) == STORY
    assert path.stat().st_mode & 0o077 == 0, "it is for its owner alone"


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (
            b'{"type":"driver_started","size":2,"max_failures":1}',
            DriverStarted(
                *(2, 1, events.Retention(None, None, "max"), 0.0, 0, "", 1, None, 10.0, -1, -1, ()),
                *(0.0, None, 0, False, (), ""),
            ),
        ),
        (b'{"type":"stop_requested","attempt":1}', events.StopRequested(1, now=False)),
        (b'{"type":"hang_cleared","attempt":1,"rank":2}', events.HangCleared(1, 2, 0.0)),
        (
            b'{"type":"usage_measured","attempt":1,"at":2,"stages":[["train","read"]]}',
            events.UsageMeasured(1, 2.0, (), (events.StageUse("train", "read", 0, 0, 0.0, 0.0, 0.0, False),), False),
        ),
        (
            b'{"type":"reported","attempt":1,"rank":0,"seq":2,"metrics":{},"at":0.5,"where":"a.py:3"}',
            messages.Reported(1, 0, 2, msgspec.Raw(b"{}"), 0.5, "a.py:3", None, None, (), ()),
        ),
        (
            b'{"type":"diagnostic_file_written","kind":"flame","path":"p","rank":0,"at":1}',
            events.DiagnosticFileWritten("flame", "p", 0, 1.0, 0.0),
        ),
    ],
)
def test_fields_that_an_earlier_release_did_not_write_have_their_defaults(line: bytes, event: Event) -> None:
    assert events.decode_event(line) == event


def test_nothing_is_written_before_the_flush_and_all_of_it_after(path: Path, journal_file: Journal) -> None:
    for event in STORY:
        journal_file.append(event)
    assert path.read_bytes() == b""
    for _ in range(2):
        journal_file.flush()
        assert journal.read_events(path) == STORY


def test_lines_are_kept_in_order_over_many_flushes_and_drivers(path: Path) -> None:
    for number, event in enumerate(STORY):
        journal_file, events_before = reopen(path)
        assert events_before == STORY[:number]
        journal_file.append(event)
        journal_file.close()
        journal_file.close()
    assert journal.read_events(path) == STORY
    assert os.listdir(path.parent) == [path.name], "a whole journal is reopened without a trace"


def test_truncated_at_every_byte_it_yields_the_events_whose_lines_are_whole(path: Path) -> None:
    data = write_journal(path, STORY[:8])
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        assert journal.read_events(path) == STORY[: data[:length].count(b"\n")]


def test_a_torn_tail_is_cut_and_set_aside_so_that_new_lines_follow_whole_ones(path: Path) -> None:
    data = write_journal(path, STORY[:5])
    content = write_journal(path, STORY[5:6])[len(data) :]
    aside = b""
    for length in range(1, len(content)):
        path.write_bytes(data + content[:length])
        journal_file, events_before = reopen(path)
        assert events_before == STORY[:5]
        assert path.read_bytes() == data
        aside += content[:length]
        assert path.with_name("journal.jsonl.torn").read_bytes() == aside, "what was set aside before is kept"
        journal_file.append(STORY[6])
        journal_file.close()
        assert journal.read_events(path) == [*STORY[:5], STORY[6]]


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"WorkersSwapped","attempt":1}',
        b'{"type":"workers_stopped"}',
        b'{"type":"workers_stopped","attempt":"one"}',
        events.encode_event(DriverStarted(1, 0, version=JOURNAL_VERSION + 1)),
    ],
)
def test_a_line_of_a_newer_version_is_refused_and_left_as_it_is(path: Path, line: bytes) -> None:
    write_journal(path, STORY[:2])
    with path.open("ab") as file:
        file.write(seal_line(line) + b"torn")
    data = path.read_bytes()
    store = DiskRunStore(LocalFiles(), RunLayout(path.parent))
    for opened in (journal.read_events, reopen, lambda _: load_history(store)):
        with pytest.raises(JournalVersionError, match="line 3 of the journal cannot be read by this") as refusal:
            opened(path)
        assert "hint: " in str(refusal.value)
    assert path.read_bytes() == data


def test_the_journal_of_a_search_is_named_as_such(path: Path) -> None:
    path.write_bytes(seal_line(b'{"type":"search_started","version":1}'))
    with pytest.raises(StorageError, match=r"journal\.jsonl holds a search, not a run\n\nhint: "):
        journal.read_events(path)


def test_no_pickle_is_ever_written(path: Path) -> None:
    secret = b"\x80\x05pickle of an object"
    returned = WorkerReturned(1, 0, 3, pickled=secret)
    failed = WorkerFailed(1, 1, WorkerFailure(1, "user", "ValueError: no"), pickled=secret)
    data = write_journal(path, [returned, failed])
    assert b"pickle of" not in data
    assert journal.read_events(path) == [
        msgspec.structs.replace(returned, pickled=None),
        msgspec.structs.replace(failed, pickled=None),
    ]
    assert returned.pickled == failed.pickled == secret, "the event that is played keeps its object"


def test_a_write_cut_by_a_full_disk_is_continued_where_it_stopped(
    path: Path, journal_file: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def fill(fd: int, data: bytes) -> int:
        if path.stat().st_size >= 40:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, bytes(data)[:40])

    for event in STORY[:3]:
        journal_file.append(event)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", fill)
        patched.setattr(files, "FULL_DISK_PATIENCE_S", 0.0)
        with pytest.raises(OSError, match="No space left"):
            journal_file.flush()
    assert journal.read_events(path) == []
    journal_file.append(STORY[3])
    journal_file.flush()
    assert journal.read_events(path) == STORY[:4]


def test_a_disk_that_is_full_for_a_moment_and_short_writes_lose_nothing(
    path: Path, journal_file: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, refusals = os.write, [errno.ENOSPC, errno.EDQUOT, errno.ENOSPC]

    def write_seven_bytes(fd: int, data: bytes) -> int:
        if refusals:
            raise OSError(refusals.pop(), "No space left on device")
        return write(fd, bytes(data)[:7])

    for event in STORY:
        journal_file.append(event)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write_seven_bytes)
        journal_file.flush()
    assert not refusals
    assert journal.read_events(path) == STORY


def test_after_a_sync_that_failed_a_close_writes_nothing_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = []

    def refuse(fd: int) -> None:
        refused.append(fd)
        raise OSError(errno.ENOSPC, "No space left on device")

    journal_file = Journal(path)
    journal_file.append(STORY[0])
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        with pytest.raises(StorageError, match=r"the run's journal cannot be written: .*: while flushing, .*\.jsonl"):
            journal_file.sync()
        journal_file.append(STORY[1])
        journal_file.close()
    assert len(refused) == 1
    assert journal.read_events(path) == STORY[:1]
