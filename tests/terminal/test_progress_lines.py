"""Where there is no terminal: a line now and then, and none of a short run."""

import io
import time

import pytest
from told_run import Told

from paceline._core import settings
from paceline._storage.layout import Layout
from paceline.train.terminal import Terminal, terminal_of


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def told_to(terminal, **told):
    return Told(lambda event, run, at: terminal.saw(event, run), at=time.time(), **told)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def out():
    return io.StringIO()


def terminal_in(tmp_path, out, clock, verbosity=1, progress_s=30.0, **config):
    return Terminal(Layout(tmp_path / "resnet"), verbosity, 30, out, config=config, progress_s=progress_s, clock=clock)


def test_there_is_a_line_every_so_many_seconds_and_one_at_the_end(tmp_path, out, clock):
    terminal = terminal_in(tmp_path, out, clock, num_epochs=4)
    told = told_to(terminal, size=1)
    told.ready()
    for epoch in range(4):
        told.reported(epoch + 1, epoch=epoch, loss=0.5)
        clock.now += 20
        terminal.tick(told.run, clock.now)
    begins = [line.split(" after ")[0] for line in out.getvalue().splitlines()]
    assert begins == ["paceline: report 2", "paceline: report 4"]
    told.returned(0, 4)
    told.stopped()
    terminal.tick(told.run, clock.now + 100)
    terminal.close()
    terminal.close()
    lines = out.getvalue().splitlines()
    assert len(lines) == 3, "nothing is said of a run that has ended but how far it came, once"
    assert "epoch=3, loss=0.5" in lines[-1]


def test_a_run_that_is_over_before_the_first_line_is_due_has_none(tmp_path, out, clock):
    terminal = terminal_in(tmp_path, out, clock)
    told = told_to(terminal, size=1)
    told.ready()
    told.reported(1, loss=0.5)
    clock.now += 29
    terminal.tick(told.run, clock.now)
    told.returned(0, 1)
    told.stopped()
    terminal.close()
    assert out.getvalue() == ""


def test_a_run_that_failed_ends_with_its_error_and_not_with_how_far_it_came(tmp_path, out, clock):
    terminal = terminal_in(tmp_path, out, clock)
    told = told_to(terminal, size=1)
    told.ready()
    clock.now += 31
    terminal.tick(told.run, clock.now)
    told.failed(0)
    told.stopped()
    terminal.close()
    assert out.getvalue().splitlines() == [
        "paceline: no report yet after 0 s",
        "paceline: rank 0 failed: ValueError: shapes do not fit",
    ]


@pytest.mark.parametrize("verbosity", [0, 1, 2])
def test_how_much_is_said_is_as_documented(tmp_path, out, clock, verbosity):
    terminal = terminal_in(tmp_path, out, clock, verbosity)
    told = told_to(terminal, size=1)
    told.ready()
    told.reported(1, loss=0.5)
    told.committed(1)
    clock.now += 31
    terminal.tick(told.run, clock.now)
    terminal.say("the disk is full", error=True)
    begins = [line.removeprefix("paceline: ").split(" after ")[0] for line in out.getvalue().splitlines()]
    assert (
        begins
        == {
            0: ["the disk is full"],
            1: ["report 1", "the disk is full"],
            2: ["report 1: loss=0.5", "checkpoint_000001 committed (1.0 KB)", "report 1", "the disk is full"],
        }[verbosity]
    )


def test_off_a_terminal_there_are_lines_as_often_as_the_setting_says(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_PROGRESS_S", "0.25")
    terminal = terminal_of(Layout(tmp_path))
    assert type(terminal) is Terminal
    assert terminal._progress_s == settings.load().progress_s == 0.25


def test_lines_go_to_where_standard_error_is_when_they_are_said(tmp_path, capsys, monkeypatch):
    terminal = Terminal(Layout(tmp_path), 1, 30)
    elsewhere = io.StringIO()
    monkeypatch.setattr("sys.stderr", elsewhere)
    terminal.say("here")
    assert elsewhere.getvalue() == "paceline: here\n"
    assert capsys.readouterr().err == ""
