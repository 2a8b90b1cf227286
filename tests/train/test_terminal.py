"""What a person is told, and when."""

import io

import msgspec

from paceline._control import events
from paceline._control.events import Committed, DriverStarted, HangSuspected, Reported, Retention, WorkerFailure
from paceline._control.run import Run
from paceline._control.step import step
from paceline._core.checkpoint_records import CheckpointRecord, StagedFiles
from paceline._storage.run_layout import RunLayout
from paceline.train.display.screen import Screen
from paceline.train.display.terminal import LogTail, Terminal


def reported(rank, seq, checkpoint=None, metrics=b'{"loss":0.123456}'):
    return Reported(1, rank, seq, msgspec.Raw(metrics), 0.0, "train.py:41", checkpoint)


class PrintedTerminal:
    """A terminal without a screen that hears what happens in a run, and what it printed."""

    def __init__(self, path, verbosity=1, size=3, max_failures=0):
        self.out, self.run = io.StringIO(), Run()
        self.terminal = Terminal(RunLayout(path), verbosity, notice_s=30, screen=Screen(self.out))
        self.play(DriverStarted(size, max_failures))

    def play(self, *happened, at=0.0):
        for event in happened:
            self.run, _ = step(self.run, event, at)
            self.hear(event)

    def hear(self, event):
        self.terminal.on_event(event, self.run)

    def tick(self, *times):
        for now in times:
            self.terminal.tick(self.run, now)

    def read(self):
        """What was printed since this was last asked."""
        text = self.out.getvalue()
        self.out.truncate(self.out.seek(0))
        return text


def test_a_checkpoint_that_waits_for_another_rank_is_told_once_with_the_call_site(tmp_path):
    told = PrintedTerminal(tmp_path)
    told.play(reported(0, 1), reported(0, 2, "checkpoint_000002"), reported(1, 1), at=100.0)
    told.tick(110.0, 129.0)
    assert told.read() == ""
    told.tick(131.0, 200.0)
    assert told.read() == (
        "paceline: rank 0 has waited 31 s in report 2 with a checkpoint, called at train.py:41: "
        "rank 1 has made 1, rank 2 has made 0. Every rank must call report() the same number of times\n"
    )
    told = PrintedTerminal(tmp_path)
    told.play(*(reported(rank, 1, "checkpoint_000001") for rank in range(3)))
    told.tick(31.0)
    assert told.read() == (
        f"paceline: report 1 has waited 31 s for its files to be stored in {tmp_path}: "
        "still storing: rank 0, rank 1, rank 2\n"
    )


def test_the_host_of_a_rank_that_is_behind_is_named(tmp_path):
    told = PrintedTerminal(tmp_path, size=2)
    told.play(*(events.WorkerReady(1, rank, pid=1, host=f"host{rank + 1}") for rank in range(2)))
    told.play(reported(0, 1, "checkpoint_000001"))
    told.tick(31.0)
    assert "called at train.py:41: rank 1 on host2 has made 0. Every rank" in told.read()


def test_a_host_that_does_not_reach_the_store_is_named_and_so_is_a_commit_that_failed(tmp_path):
    told = PrintedTerminal(tmp_path)
    told.terminal.storage_uri = "s3://bucket/runs/alpha"
    told.play(*(events.WorkerReady(1, rank, pid=1, host=f"host{rank + 1}") for rank in range(3)))
    told.play(*(reported(rank, 1, "checkpoint_000001") for rank in range(3)))
    told.play(*(events.CheckpointStaged(1, 1, StagedFiles(rank, ())) for rank in range(2)))
    told.tick(31.0)
    told.hear(events.StagingFailed(1, 2, 1, "no answer"))
    told.hear(events.CommitFailed(1, 4, "OSError: disk full"))
    assert told.read() == (
        "paceline: report 1 has waited 31 s for its files to be stored in s3://bucket/runs/alpha: "
        "still storing: rank 2 on host3\n"
        "paceline: rank 2 on host3 cannot store the checkpoint of report 1: no answer\n"
        "paceline: cannot commit the checkpoint of report 4: OSError: disk full\n"
    )


def test_a_failure_is_told_at_once_and_so_is_the_wait_before_the_next_attempt(tmp_path):
    """Also while other ranks come to the report of the failed one."""
    told, texts = PrintedTerminal(tmp_path, size=2, max_failures=9), []
    failure = WorkerFailure(1, "killed", "killed by SIGKILL")
    for attempt in (1, 2):
        ahead = Reported(attempt, 1, 1, msgspec.Raw(b"{}"), 0.0, "train.py:41")
        ends = events.WorkerFailed(attempt, 1, failure), events.DeadlinePassed(attempt), events.WorkersStopped(attempt)
        for event in (ahead, *ends):
            told.play(event, at=0.125)
            texts.append(told.read())
    failed, retrying = "paceline: rank 1 failed: killed by SIGKILL\n", "paceline: retrying in 0.5 s\n"
    assert texts == ["", failed, "", "paceline: attempt 2, from the beginning\n", "", failed, "", retrying]


def test_lines_are_passed_on_whole_and_a_progress_bar_by_its_last_state(tmp_path):
    log = tmp_path / "log"
    tail = LogTail(log, "[rank 0] ")
    out = io.StringIO()
    tail.forward_lines(out.write)
    text = "one\ntwo halves\nschön\n 10%\r 50%\r100%\nlast words".encode()
    for length in (10, 19, len(text)):  # The second is in the middle of a character.
        log.write_bytes(text[:length])
        tail.forward_lines(out.write)
        assert out.getvalue().endswith("\n")
    tail.forward_lines(out.write, final=True)
    assert out.getvalue().splitlines() == [
        f"[rank 0] {line}" for line in ("one", "two halves", "schön", "100%", "last words")
    ]


def test_a_hang_and_its_end_are_told_at_every_verbosity(tmp_path):
    failure = WorkerFailure(1, "hang", "rank 1 has been stuck at train.py:41 for 45 s")
    stacks = tmp_path / "logs" / "attempt_1" / "stacks.txt"
    for verbosity in (0, 1):
        told = PrintedTerminal(tmp_path, verbosity)
        told.hear(HangSuspected(1, failure))
        told.hear(HangSuspected(1, failure, "restart"))
        told.hear(events.HangCleared(1, 1, 61.2))
        assert told.read().splitlines() == [
            f"paceline: rank 1 has been stuck at train.py:41 for 45 s; all stacks: {stacks}",
            f"paceline: rank 1 has been stuck at train.py:41 for 45 s; all stacks: {stacks}; restarting the workers",
            "paceline: rank 1 continues after 61 s",
        ]


def committed(seq, metrics, status="COMMITTED"):
    record = CheckpointRecord(seq, f"checkpoint_{seq:06d}", 1, msgspec.Raw(metrics), status=status)
    return Committed(record)


def test_a_score_that_no_checkpoint_has_is_told_once(tmp_path):
    told = PrintedTerminal(tmp_path)
    told.run = msgspec.structs.replace(told.run, retention=Retention(1, "eval/acuracy", "max"))
    told.hear(committed(1, b'{"eval":{"accuracy":0.5}}', "PENDING_VALIDATION"))
    assert told.read() == "", "its validation may bring it"
    told.hear(committed(1, b'{"eval":{"acuracy":{"$number":"nan"}}}'))
    assert told.read() == "", "it is a number"
    for seq in (2, 3):
        told.hear(committed(seq, b'{"eval":{"accuracy":0.5}}'))
    assert told.read() == (
        "paceline: checkpoint_000002 ranks last: it has no number 'eval/acuracy' (checkpoint_score_attribute) among "
        "its metrics eval/accuracy\n"
    )
