"""What is printed while lines are redrawn at the end of a terminal: nothing is lost, and no line is cut in two."""

import io
import os
import signal

import pytest

from paceline.train.display.screen import RedrawTimer
from paceline.train.display.terminal_region import can_draw_on, is_same_terminal
from screen import HIDE, OTHER_SCREEN, render_screen, resize, run_on_terminal

BEGIN = """
import logging, os, signal, sys, threading, time
logging.basicConfig(format="logged %(message)s")
from paceline.train.display.terminal_region import TerminalRegion, can_draw_on
region = TerminalRegion(sys.stderr, colour=False)

def lines(*texts):
    return [((text, "bold"),) for text in texts]

"""


def lines_after(script, tmp_path, width=80, **options):
    ended, text = run_on_terminal(BEGIN + script, cwd=tmp_path, width=width, **options)
    assert HIDE not in text
    assert OTHER_SCREEN not in text
    return ended, [line for line in render_screen(text, width) if line]


PRINTS = """
assert region.draw(lines("block 1", "block 2"))
print("printed")
print("in two ", end="", flush=True)
assert region.draw(lines("block 3"))
print("parts")
logging.warning("once")
sys.stderr.write("and to standard error\\n")
assert region.draw(lines("block 4", "block 5", "block 6"))
print("no end", end="")
"""

ENDS = {
    "its end": ("region.close()\nprint(', and an end')\nlogging.warning('after')", 0),
    "an exception": ("raise RuntimeError('lost')", 1),
    "sys.exit": ("sys.exit(3)", 3),
    "a kill": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
}


@pytest.mark.parametrize("how", ENDS)
def test_all_that_is_printed_stays_however_it_ends(how, tmp_path):
    end, code = ENDS[how]
    ended, lines = lines_after(PRINTS + end, tmp_path)
    assert ended == code
    assert lines[:4] == ["printed", "in two parts", "logged once", "and to standard error"]
    rest = lines[4:]
    if how == "a kill":
        assert rest == ["block 4", "block 5", "block 6"], "nobody was there to take it away"
    else:
        assert not any("block" in line for line in rest)
        assert any(line.startswith("no end") for line in rest)
    if how == "its end":
        assert rest == ["no end, and an end", "logged after"]


def test_lines_of_threads_stay_whole_while_regions_come_and_go(tmp_path):
    """A thread may still hold the stream that stood in for standard output while a region was there."""
    script = """
from paceline.train.display.terminal_region import TERMINAL_LOCK

def prints(number):
    stream = sys.stdout
    for i in range(200):
        if i % 2:
            stream.write(f"thread {number} line {i}\\n")
        else:
            with TERMINAL_LOCK:
                print(f"thread {number} line {i}")

region.draw(lines("block"))
threads = [threading.Thread(target=prints, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
while any(thread.is_alive() for thread in threads):
    region.draw(lines("block", str(time.monotonic())))
    region.close()
    region = TerminalRegion(sys.stderr, colour=False)
region.close()
"""
    ended, lines = lines_after(script, tmp_path)
    assert ended == 0
    for number in range(4):
        mine = [line for line in lines if line.startswith(f"thread {number} ")]
        assert mine == [f"thread {number} line {i}" for i in range(200)]
    assert len(lines) == 800


def test_output_of_another_run_comes_above_a_region_that_is_drawn_meanwhile(tmp_path):
    script = """
from paceline.train.display.screen import TerminalScreen

other = TerminalScreen()
assert region.draw(lines("block 1", "block 2"))
other.write_output("[rank 0] printed\\n")
other.write("paceline: begins\\n")
assert region.draw(lines("block 3", "block 4"))
region.close()
other.write_output("[rank 0] more\\n")
"""
    ended, lines = lines_after(script, tmp_path)
    assert ended == 0
    assert lines == ["[rank 0] printed", "paceline: begins", "[rank 0] more"]


def test_a_second_region_is_not_drawn_while_there_is_one(tmp_path):
    script = """
other = TerminalRegion(sys.stderr, colour=False)
assert region.draw(lines("first"))
assert not other.draw(lines("second"))
assert not can_draw_on(sys.stderr, "xterm"), "what is put above a region is no place for another"
region.close()
assert not region.draw(lines("closed"))
assert other.draw(lines("second"))
other.write("above\\n")
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended, lines = lines_after(script, tmp_path)
    assert ended == -signal.SIGKILL
    assert lines == ["above", "second"]


def test_more_lines_than_the_terminal_has_are_left_out(tmp_path):
    script = """
region.draw(lines(*(f"line {i}" for i in range(30))))
region.draw(lines(*(f"new line {i}" for i in range(30))))
os.kill(os.getpid(), signal.SIGKILL)
"""
    _, lines = lines_after(script, tmp_path, height=10)
    assert lines == [f"new line {i}" for i in range(9)]


def test_a_process_in_the_background_draws_nothing(tmp_path):
    script = """
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
region.draw(lines("drawn"))
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    signal.pause()
try:
    os.setpgid(child, child)
except PermissionError:
    pass
os.tcsetpgrp(2, child)
assert not region.draw(lines("not drawn"))
os.tcsetpgrp(2, os.getpgrp())
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
assert region.draw(lines("drawn again"))
region.close()
"""
    ended, lines = lines_after(script, tmp_path, act=lambda text, keys: None)
    assert (ended, [line for line in lines if "not" in line]) == (0, [])


def test_nothing_is_drawn_on_a_stream_that_is_no_terminal(tmp_path):
    with (tmp_path / "file").open("w") as file:
        assert not can_draw_on(file, "xterm")
    assert not can_draw_on(file, "xterm"), "closed"
    ours, its = os.openpty()
    with os.fdopen(ours), os.fdopen(its, "w", encoding="utf-8") as terminal:
        assert not can_draw_on(terminal, "xterm"), "it does not say how large it is"
        resize(its, 80, 24)
        assert can_draw_on(terminal, "xterm")
        assert is_same_terminal(terminal, terminal)
        assert not can_draw_on(terminal, "dumb")
        assert not can_draw_on(terminal, None)
        other, at_its_end = os.openpty()
        resize(at_its_end, 80, 24)
        with os.fdopen(other), os.fdopen(at_its_end, "w", encoding="latin-1") as another:
            assert not any(is_same_terminal(stream, terminal) for stream in (another, None, io.StringIO()))
            assert not can_draw_on(another, "xterm"), "it has no blocks to draw with"


def test_a_block_is_drawn_four_times_a_second_at_most_and_takes_a_hundredth_of_the_time():
    for takes_s, drawn in ((0.0, 40), (0.001, 40), (0.01, 10), (0.1, 1)):
        redrawn, now, times = RedrawTimer(0.0), 0.0, 0
        while now < 10:
            if redrawn.is_due(now):
                redrawn.mark_drawn(now, now + takes_s)
                now += takes_s
                times += 1
            now += 0.01
        assert drawn * 0.8 <= times <= drawn
        assert times * takes_s <= 0.1
