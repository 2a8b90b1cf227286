"""What a person sees of a search, with a terminal and without."""

import io
import re
import signal
import threading
from pathlib import Path

import pytest
from recorded_search import RecordedSearch

from paceline import train
from paceline._core import settings
from paceline._storage.run_layout import RunLayout
from paceline.train import DataParallelTrainer, FailureConfig, RunConfig
from paceline.train.display.screen import Screen
from paceline.train.display.styled_lines import to_plain_text
from paceline.train.driver.execution_target import choose_target
from paceline.train.driver.run_session import execute_run
from paceline.train.driver.run_spec import RunEnvironment
from paceline.train.driver.trainer_arguments import build_run_spec
from paceline.tune.display.terminal import SearchTerminal, TrialTerminal
from paceline.tune.display.trial_table import TrialTable
from screen import HIDE, OTHER_SCREEN, render_screen, run_on_terminal

GOLDEN = Path(__file__).parent / "golden"
URI = "/results/mnist"


def configuration(number):
    return {"lr": 0.1 / (number + 1), "layers": number + 1, "act": "relu", "data": "/data/mnist"}


def small_search(*observers):
    """Trials that finish, are stopped, paused, cloned, and one that fails."""
    recorded = RecordedSearch(*observers, num_samples=6).starts()
    recorded.trial("00000", 0.9, 0.5, ending=None, config=configuration(0))
    recorded.reported("00000", loss=0.3, checkpoint=True)
    recorded.ended("00000")
    why = "loss=0.8 is not among the best third of 3 trials at iteration 1"
    recorded.trial("00001", 0.8, ending="stopped", why=why, config=configuration(1))
    recorded.trial("00002", 0.7, ending="paused", why="waits for its bracket", config=configuration(2))
    recorded.trial("00003", 0.7, ending="failed", why="ValueError: shapes do not fit\n\nhint", config=configuration(3))
    recorded.began("00002")
    recorded.ended("00002", "interrupted")
    recorded.cloned("00002", "00000", **(configuration(2) | {"lr": 0.08}))
    recorded.began("00002")
    recorded.reported("00002", loss=0.2, checkpoint=True)
    recorded.trial("00004", ending=None, config=configuration(4))
    recorded.no_more()
    return recorded


def lines_of(search, verbosity=1):
    out = io.StringIO()
    terminal = SearchTerminal("mnist", URI, verbosity, Screen(out), clock=lambda: 0.0)
    recorded = search(terminal)
    recorded.ended("00004")
    recorded.ended("00002")
    recorded.search_ended()
    terminal.close()
    return out.getvalue()


def test_a_small_search_in_lines_of_any_verbosity():
    assert lines_of(small_search) == (GOLDEN / "lines.txt").read_text()
    assert lines_of(small_search, verbosity=2) == (GOLDEN / "every_report.txt").read_text()
    assert lines_of(small_search, verbosity=0) == ""
    out = io.StringIO()
    terminal = SearchTerminal("mnist", URI, 0, Screen(out))
    terminal.say("began")
    terminal.say("the disk is full", error=True)
    assert out.getvalue() == "paceline: the disk is full\n"


@pytest.mark.parametrize("width", [80, 160])
def test_a_small_search_as_a_table(width):
    recorded = small_search()
    table = TrialTable("mnist", URI)
    for trial in ("00000", "00001", "00003"):
        table.add_ended_trial(trial)
    shown = as_text(table.render(recorded.search, recorded.at + 70, width, 24), width)
    assert shown == (GOLDEN / f"table_{width}.txt").read_text()


def as_text(lines, width):
    texts = [to_plain_text(line) for line in lines]
    assert max(map(len, texts)) <= width
    return "".join(f"{text}\n" for text in texts)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_table_of_many_long_trials_keeps_to_its_room(width):
    recorded = RecordedSearch(metric="validation/a_metric_with_a_very_long_name", mode="max").starts()
    for number in range(100):
        config = {f"a_parameter_with_a_long_name_{n}": "a text as long as it gets" * (n + number) for n in range(9)}
        recorded.trial(f"{number:05d}", ending=None, config=config)
        recorded.reported(f"{number:05d}", validation={"a_metric_with_a_very_long_name": 1e-300 * number})
    for number in range(50):
        recorded.ended(f"{number:05d}", "stopped", why="because " * 50)
    table = TrialTable("a-search-with-a-long-name", "/a/directory/far/down" * 9)
    for number in range(50):
        table.add_ended_trial(f"{number:05d}")
    text = as_text(table.render(recorded.search, recorded.at, width, 24), width)
    assert len(text.splitlines()) < 24
    assert "50 running   50 stopped" in text
    assert "and 36 more" in text
    assert "  00050 " in text


def test_a_thousand_quick_trials_give_a_few_dozen_lines_and_all_is_summed_up():
    out, now = io.StringIO(), [0.0]
    terminal = SearchTerminal("mnist", URI, 1, Screen(out), clock=lambda: now[0])
    recorded = RecordedSearch(terminal, num_samples=1000).starts()
    for number in range(1000):
        recorded.trial(f"{number:05}", 1000.0 - number % 100, ending="returned" if number % 4 else "failed", why="E: x")
        now[0] += 0.05
        terminal.tick(recorded.search, recorded.at)
    recorded.search_ended()
    lines = out.getvalue().splitlines()
    assert len(lines) < 200
    sums = [line for line in lines if re.match(r"paceline: \d+ trials: ", line)]
    assert 8 <= len(sums) <= 10
    assert "; best is trial 00099, loss=901: lr=9.9" in sums[-1]
    assert "paceline: search mnist finished" in out.getvalue()
    assert "750 stopped, 250 failed" in out.getvalue()
    assert "failed: 250 trials (00000, 00004, 00008, 00012, 00016 and 245 more): E: x; see" in lines[-1]


def test_an_interrupted_search_says_how_to_continue():
    out = io.StringIO()
    recorded = RecordedSearch(SearchTerminal("mnist", URI, 1, Screen(out))).starts()
    recorded.trial("00000", 1.0, ending="interrupted")
    recorded.search_ended("Ctrl-C", complete=False)
    assert "search mnist has stopped (Ctrl-C) after" in out.getvalue()
    assert out.getvalue().endswith("paceline: run the script again with the same name to continue\n")
    recorded.starts()
    assert "paceline: search mnist resumed: 1 trial, 1 waiting, in /results/mnist\n" in out.getvalue()
    recorded.trial("00001", 0.9)
    recorded.observers = (SearchTerminal("mnist", URI, 1, Screen(out)),)
    recorded.starts()
    recorded.trial("00002", 2.0)
    recorded.trial("00003", 0.5)
    assert "trial 00002 finished after 1 iteration, 2 s: loss=2\n" in out.getvalue(), "an earlier one was better"
    assert "trial 00003 finished after 1 iteration, 2 s: loss=0.5, the best so far\n" in out.getvalue()


def test_a_search_that_ends_early_says_why_and_a_table_without_a_metric_shows_what_was_reported():
    out = io.StringIO()
    recorded = RecordedSearch(SearchTerminal("mnist", URI, 1, Screen(out))).starts()
    recorded.trial("00000", 1.0, ending=None)
    recorded.no_more("its time of 10 s is over")
    assert "paceline: search mnist ends early: its time of 10 s is over\n" in out.getvalue()
    text = as_text(TrialTable("mnist", URI).render(recorded.search, recorded.at, 80, 24), 80)
    assert text.startswith("search mnist  1 trial, 4 s, ends early: its time of 10 s is over")
    recorded = RecordedSearch(metric=None, mode=None).starts()
    recorded.trial("00000", 0.5, ending=None, config={})
    text = as_text(TrialTable("mnist", URI).render(recorded.search, recorded.at, 80, 24), 80)
    assert "loss=0.5" in text
    assert "best" not in text


def noisy(config):
    print("this is", config["name"], flush=True)
    attempt = train.get_checkpoint()
    print("half a line", end="")
    if attempt is None:
        train.report({"loss": 1.0}, checkpoint=train.Checkpoint.from_dict({}))
        raise OSError("the first time")
    train.report({"loss": 1.0})


def play(name, directory, above, **run_config):
    """A trial's run, as a search has it render_screen."""
    config = RunConfig(name=f"trial_{name}", storage_path=directory, **run_config)
    trainer = DataParallelTrainer(noisy, train_loop_config={"name": name}, run_config=config)
    terminal = TrialTerminal(name, RunLayout(Path(directory) / f"trial_{name}"), above, settings.load().report_notice_s)
    spec = build_run_spec(trainer.trainer_arguments, choose_target(trainer.scaling_config, config))
    return execute_run(spec, terminal, RunEnvironment())


def test_forwards_output_of_concurrent_trials_by_line_and_announces_retries(tmp_path, capsys):
    above = SearchTerminal("mnist", URI, 1)
    names = [f"{number:05d}" for number in range(3)]
    once_more = {"failure_config": FailureConfig(max_failures=1)}
    threads = [threading.Thread(target=play, args=(name, tmp_path, above), kwargs=once_more) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorded = capsys.readouterr()
    for name in names:
        own = [line for line in recorded.out.splitlines() if line.startswith(f"[{name}] ")]
        assert own[:1] == [f"[{name}] this is {name}"]
        assert own[-2:] == [f"[{name}] this is {name}", f"[{name}] half a line"]
        assert f"[{name}] OSError: the first time" in own
        again = f"trial {name} restarts after OSError: the first time: attempt 2, from checkpoint checkpoint_000001"
        assert recorded.err.count(f"paceline: {again}\n") == 1
    assert all(re.match(r"\[0000[012]\] ", line) for line in recorded.out.splitlines())
    # A run itself says neither that it begins nor that it is complete.
    assert len(recorded.err.splitlines()) == len(names)


def test_with_verbosity_0_trials_are_silent_and_their_logs_are_not(tmp_path, capsys):
    with pytest.raises(train.TrainingFailedError):
        play("00000", tmp_path, SearchTerminal("mnist", URI, 0))
    assert capsys.readouterr() == ("", "")
    log = tmp_path / "trial_00000" / "logs" / "attempt_1" / "rank_0.log"
    assert log.read_text().startswith("this is 00000\n")


ON_TERMINAL = f"""
import logging, os, signal, sys, threading, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from recorded_search import RecordedSearch
from paceline.train.display.screen import RedrawTimer, open_screen
from paceline.tune.display.terminal import SearchTerminal

terminal = SearchTerminal("mnist", "/results/mnist", 1, open_screen(1))
recorded = RecordedSearch(terminal, at=time.time())
recorded.step_s = 0.0

def tick():
    terminal.screen._timer = RedrawTimer(-1.0)
    terminal.tick(recorded.search, recorded.at + 1)

recorded.starts()
tick()
recorded.trial("00000", 0.9, 0.5)
recorded.trial("00001", 0.9, ending=None)
tick()
print("printed by the script")
terminal.screen.write_output("[00001] printed by a trial\\n[00001] \\x1b[31mwith colours\\x1b[0m and [brackets]\\n")
logging.getLogger("somebody").warning("logged")
recorded.trial("00002", ending="failed", why="ValueError: boom")
tick()
recorded.reported("00001", loss=0.1)
tick()
"""

ENDS = {
    "an exception that nobody catches": ("raise RuntimeError('lost')", 1),
    "a kill": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "its end": ("recorded.ended('00001')\nrecorded.search_ended()\nterminal.close()", 0),
}


@pytest.mark.parametrize("how", ENDS)
def test_however_a_search_ends_the_cursor_is_there_and_the_screen_as_it_was(how, tmp_path):
    end, code = ENDS[how]
    ended, text = run_on_terminal(ON_TERMINAL + end, cwd=tmp_path)
    assert ended == code
    assert OTHER_SCREEN not in text
    assert HIDE not in text
    lines = render_screen(text)
    printed = [
        "printed by the script",
        "[00001] printed by a trial",
        "[00001] with colours and [brackets]",
        "logged",
        "paceline: trial 00002 failed at iteration 0: ValueError: boom",
    ]
    assert lines[: len(printed)] == printed
    if how == "a kill":
        assert "search mnist  3 trials" in lines[len(printed)], "nobody was there to take the table away"
        assert sum("search mnist" in line for line in lines) == 1, "it is drawn over itself"
        (running,) = (line for line in lines if line.startswith("  00001"))
        assert re.fullmatch(r"  00001 +2 +1 s +0\.1 +0\.1", running)
    else:
        assert not any("search mnist  3 trials" in line for line in lines)
    if how == "its end":
        assert any("best: trial 00001, loss=0.1 at iteration 2" in line for line in lines)
    if "exception" in how:
        assert "RuntimeError: lost" in lines
