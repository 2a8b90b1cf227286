"""Where there is no terminal: a line now and then, and none of a short run."""

import io
import time
from pathlib import Path

import pytest
from sample_run import RunEvents

from paceline._control import events
from paceline._storage.run_layout import RunLayout
from paceline.train.display.screen import Screen
from paceline.train.display.terminal import Terminal


class PrintedRun(RunEvents):
    """A run of one worker that a terminal without a screen hears of, with a line every 30 seconds."""

    def __init__(self, verbosity=1, size=1):
        self.now = 0.0
        self.out = io.StringIO()
        options = {"config": {}, "progress_s": 30.0, "clock": lambda: self.now}
        self.terminal = Terminal(RunLayout(Path("resnet")), verbosity, 30, Screen(self.out), **options)
        super().__init__(lambda event, run, at: self.terminal.on_event(event, run), at=time.time(), size=size)
        self.ready()

    def wait(self, seconds):
        self.now += seconds
        self.terminal.tick(self.run, self.now)

    def lines(self):
        return [line.removeprefix("paceline: ") for line in self.out.getvalue().splitlines()]


def test_there_is_a_line_every_so_many_seconds_and_one_at_the_end():
    run = PrintedRun()
    for epoch in range(4):
        run.reported(epoch + 1, epoch=epoch, loss=0.5)
        run.wait(20)
        assert len(run.lines()) == (epoch + 1) // 2
    assert [line.split(" after ")[0] for line in run.lines()] == ["report 2", "report 4"]
    run.returned(0, 4)
    run.stopped()
    run.wait(100)
    run.terminal.close()
    run.terminal.close()
    assert len(run.lines()) == 3, "nothing is said of a run that has ended but how far it came, once"
    assert "epoch=3, loss=0.5" in run.lines()[-1]


def test_a_run_that_failed_ends_with_its_error_and_not_with_how_far_it_came():
    run = PrintedRun()
    run.wait(31)
    run.failed(0)
    run.stopped()
    run.terminal.close()
    assert run.lines() == ["no report yet after 0 s", "rank 0 failed: ValueError: shapes do not fit"]


def test_the_cause_of_a_failure_is_shown_also_after_what_it_led_to():
    run = PrintedRun(size=2)
    run.failed(0, "connection closed", collateral=True)
    assert run.lines() == []
    run.happens(events.DeadlinePassed(1))
    run.failed(1, "its node was lost")
    run.happens(events.DeadlinePassed(1))
    run.stopped()
    assert run.lines() == ["rank 0 failed: connection closed", "rank 1 failed: its node was lost"]


def test_a_restart_with_fewer_workers_says_so():
    run = PrintedRun()
    run.happens(events.DriverStarted(2, 1, sizes=(1, 2), num_places=2))
    run.failed(1)
    run.happens(events.CapacityChanged(run.run.attempt, 1))
    run.stopped()
    assert run.lines()[-1].endswith("attempt 3, from the beginning, with 1 worker where there were 2")


@pytest.mark.parametrize(
    ("verbosity", "begins"),
    [(0, []), (1, ["report 1"]), (2, ["report 1: loss=0.5", "checkpoint_000001 committed (1.0 KB)", "report 1"])],
)
def test_verbosity_is_as_documented(verbosity, begins):
    run = PrintedRun(verbosity)
    run.reported(1, loss=0.5)
    run.committed(1)
    run.wait(31)
    run.terminal.say("the disk is full", error=True)
    assert [line.split(" after ")[0] for line in run.lines()] == [*begins, "the disk is full"]


def test_lines_go_to_the_standard_error_of_the_moment(tmp_path, capsys, monkeypatch):
    terminal = Terminal(RunLayout(tmp_path), 1, 30)
    elsewhere = io.StringIO()
    monkeypatch.setattr("sys.stderr", elsewhere)
    terminal.say("here")
    assert elsewhere.getvalue() == "paceline: here\n"
    assert capsys.readouterr().err == ""
