"""What is printed while lines are redrawn at the end of a terminal: nothing is lost, and no line is cut in two."""

import io
import os
import signal

import pytest

from paceline.train.live import Redrawn
from paceline.train.region import can_be_drawn_on, is_same
from screen import HIDE, OTHER_SCREEN, played, resize, run_on_terminal

BEGIN = """
import logging, os, signal, sys, threading, time
logging.basicConfig(format="logged %(message)s")
from paceline.train.region import Region, can_be_drawn_on
region = Region(sys.stderr, colour=False)

def lines(*texts):
    return [((text, "bold"),) for text in texts]

"""


def lines_after(script, tmp_path, width=80, **given):
    ended, text = run_on_terminal(BEGIN + script, cwd=tmp_path, width=width, **given)
    assert HIDE not in text
    assert OTHER_SCREEN not in text
    return ended, [line for line in played(text, width) if line]


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


def test_threads_that_print_at_once_cut_no_line_and_lose_none(tmp_path):
    script = """
def prints(number):
    for i in range(200):
        print(f"thread {number} line {i} " + "x" * 40)

threads = [threading.Thread(target=prints, args=(number,)) for number in range(4)]
region.draw(lines("block"))
for thread in threads:
    thread.start()
while any(thread.is_alive() for thread in threads):
    region.draw(lines("block", str(time.monotonic())))
region.close()
"""
    ended, lines = lines_after(script, tmp_path)
    assert ended == 0
    for number in range(4):
        mine = [line for line in lines if line.startswith(f"thread {number} ")]
        assert mine == [f"thread {number} line {i} " + "x" * 40 for i in range(200)]
    assert len(lines) == 800


def test_lines_of_threads_stay_while_regions_come_and_go(tmp_path):
    """Whoever writes may hold a stream of before: one that stood in its place for a region that is gone."""
    script = """
from paceline.train.region import its_end

def prints(number):
    stream = sys.stdout
    for i in range(200):
        if i % 2:
            stream.write(f"thread {number} line {i}\\n")
        else:
            with its_end:
                print(f"thread {number} line {i}")

region.draw(lines("block"))
threads = [threading.Thread(target=prints, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
while any(thread.is_alive() for thread in threads):
    region.draw(lines("block", str(time.monotonic())))
    region.close()
    region = Region(sys.stderr, colour=False)
region.close()
"""
    ended, lines = lines_after(script, tmp_path)
    assert ended == 0
    for number in range(4):
        mine = [line for line in lines if line.startswith(f"thread {number} ")]
        assert mine == [f"thread {number} line {i}" for i in range(200)]
    assert len(lines) == 800


def test_what_another_run_is_about_to_say_comes_above_a_region_that_is_drawn_meanwhile(tmp_path):
    script = """
from pathlib import Path
from paceline._storage.layout import Layout
from paceline.train.live import LiveTerminal

other = LiveTerminal(Layout(Path("runs/other")), 1, 60.0)
output = other._sink()
assert region.draw(lines("block 1", "block 2"))
output.write("[rank 0] printed\\n")
other.say("begins")
assert region.draw(lines("block 3", "block 4"))
region.close()
output.write("[rank 0] more\\n")
"""
    ended, lines = lines_after(script, tmp_path)
    assert ended == 0
    assert lines == ["[rank 0] printed", "paceline: begins", "[rank 0] more"]


def test_a_second_region_is_not_drawn_while_there_is_one(tmp_path):
    script = """
other = Region(sys.stderr, colour=False)
assert region.draw(lines("first"))
assert not other.draw(lines("second"))
assert not can_be_drawn_on(sys.stderr, "xterm"), "what is put above a region is no place for another"
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


def test_a_terminal_that_is_resized_is_drawn_on_as_it_is(tmp_path):
    script = """
from paceline.train.region import size
print("before")
region.draw(lines("x" * (size(sys.stderr)[0] - 1)))
while size(sys.stderr)[0] == 80:
    time.sleep(0.01)
print("after")
region.draw(lines("y" * (size(sys.stderr)[0] - 1)))
os.kill(os.getpid(), signal.SIGKILL)
"""

    def act(text, keys):
        if "x" * 79 in text:
            resize(keys, 120, 24)

    _, lines = lines_after(script, tmp_path, act=act)
    assert lines == ["before", "after", "y" * 80, "y" * 39]


def test_a_process_in_the_background_draws_nothing(tmp_path):
    script = """
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
region.draw(lines("drawn"))
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    time.sleep(30)
    os._exit(0)
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


def test_what_is_no_terminal_is_not_drawn_on(tmp_path):
    with (tmp_path / "file").open("w") as file:
        assert not can_be_drawn_on(file, "xterm")
    assert not can_be_drawn_on(file, "xterm"), "closed"
    ours, its = os.openpty()
    with os.fdopen(ours), os.fdopen(its, "w", encoding="utf-8") as terminal:
        assert not can_be_drawn_on(terminal, "xterm"), "it does not say how large it is"
        resize(its, 80, 24)
        assert can_be_drawn_on(terminal, "xterm")
        assert is_same(terminal, terminal)
        other, at_its_end = os.openpty()
        with os.fdopen(other), os.fdopen(at_its_end, "w") as another:
            assert not is_same(another, terminal)
        assert not is_same(None, terminal)
        assert not is_same(io.StringIO(), terminal)
        assert not can_be_drawn_on(terminal, "dumb")
        assert not can_be_drawn_on(terminal, None)
    ours, its = os.openpty()
    with os.fdopen(ours), os.fdopen(its, "w", encoding="latin-1") as terminal:
        resize(its, 80, 24)
        assert not can_be_drawn_on(terminal, "xterm"), "it has no blocks to draw with"


def test_a_block_is_drawn_four_times_a_second_at_most_and_takes_a_hundredth_of_the_time():
    for takes_s, drawn in ((0.0, 40), (0.001, 40), (0.01, 10), (0.1, 1)):
        redrawn, now, times = Redrawn(0.0), 0.0, 0
        while now < 10:
            if redrawn.is_due(now):
                redrawn.drawn(now, now + takes_s)
                now += takes_s
                times += 1
            now += 0.01
        assert drawn * 0.8 <= times <= drawn
        assert times * takes_s <= 0.1
