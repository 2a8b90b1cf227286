"""A run on a terminal: real processes on a pseudo-terminal, and what is on the screen."""

import os
import re
from pathlib import Path

import pytest

from screen import HIDE, OTHER_SCREEN, render_screen, resize, run_on_terminal

GOLDEN = Path(__file__).parent / "golden"

SCRIPT = """
import sys, tempfile, threading, time
from pathlib import Path
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig

def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.02)

def trained(config):
    first = train.get_context().get_world_rank() == 0
    for epoch in range(5):
        if first:
            print(f"epoch {epoch}, \\x1b[31mred\\x1b[0m [brackets]")
        time.sleep(0.1)
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "weights").write_bytes(bytes(1500))
            checkpoint = Checkpoint.from_directory(directory) if first and epoch == 2 else None
            train.report({"epoch": epoch, "loss": 1 / (epoch + 1)}, checkpoint=checkpoint)
    wait_for("go")
    if first:
        print("last words", end="")

def fit(name="resnet", function=trained, num_workers=2, **config):
    run_config = RunConfig(name=name, storage_path="runs")
    scaling = ScalingConfig(num_workers=num_workers)
    return DataParallelTrainer(
        function, train_loop_config={"num_epochs": 10, **config}, scaling_config=scaling, run_config=run_config
    ).fit()

"""


def screen_lines(text, width=80):
    return [line for line in render_screen(text, width) if line]


def is_measured(lines):
    return any(line.startswith("  report 5") for line in lines) and any("memory" in line for line in lines)


def normalised(lines):
    """Without what depends on the machine and the moment."""
    text = "\n".join(lines) + "\n"
    for pattern, instead in (
        (r"\d+ threads? each", "N threads each"),
        (r"in /\S*/runs/", "in RUNS/"),
        (r"(checkpoint_\d+)((?:  [\d.]+ [KMG]B)?)(  | )([\d:]+( s)? ago|just now)", r"\1\2\3AGE"),
        (r"[\d.]+ (epochs/s|s an epoch)", "N epochs/s"),
        (r"running  [\d:.]+( s)?", "running  N s"),
        (r"after [\d:.]+( s)?:", "after N s:"),
        (r"50 %  [\d:.]+( s)? left", "50 %  N s left"),
        (r"( time |; )[^;]*compute .*", r"\1SHARES"),
        (r"(running  cpu).*", r"\1  N MB"),
        (r"(device  memory)  cores", r"\1"),  # Measured twice before it was come to, where there is much else to do.
    ):
        text = re.sub(pattern, instead, text)
    return text


def test_the_whole_screen_while_a_run_is_under_way_and_after_it(tmp_path):
    screens = []

    def act(text, keys):
        lines = screen_lines(text, 200)
        if not screens and is_measured(lines):
            screens.append(lines)
            (tmp_path / "go").touch()

    result, text = run_on_terminal(SCRIPT + "fit()\nprint('the script ends')", cwd=tmp_path, act=act, width=200)
    assert result == 0, text
    assert HIDE not in text
    assert OTHER_SCREEN not in text
    assert normalised(screens[0]) == (GOLDEN / "live_screen.txt").read_text()
    assert normalised(screen_lines(text, 200)) == (GOLDEN / "screen_after.txt").read_text()
    shares = [int(share) for share in re.findall(r"(\d+) %", next(line for line in screens[0] if "  time" in line))]
    assert sum(shares) == 100


def test_narrow_resized_in_colour_and_with_standard_output_in_a_file(tmp_path):
    widths = []

    def act(text, keys):
        if not widths and "report 5" in text:
            widths.append(60)
            resize(keys, 60, 20)
        elif widths and re.search(r"s  epoch 5 of 10", re.sub(r"\x1b\[[0-9;]*m", "", text)):
            # In one line, for which there was no room before.
            (tmp_path / "go").touch()

    with (tmp_path / "out.txt").open("w") as out:
        result, text = run_on_terminal(
            SCRIPT + "fit()", cwd=tmp_path, width=40, env={"NO_COLOR": ""}, act=act, stdout=out
        )
    assert result == 0, text
    printed = (tmp_path / "out.txt").read_text().splitlines()
    assert printed == [*(f"[rank 0] epoch {i}, \x1b[31mred\x1b[0m [brackets]" for i in range(5)), "[rank 0] last words"]
    assert "[rank 0]" not in text
    assert "\x1b[1mrun resnet\x1b[0m" in text
    assert "run resnet finished after 5 reports" in text.replace("\r\n", "")


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_a_clean_screen(times, tmp_path):
    script = """
def forever(config):
    for epoch in range(100_000):
        train.report({"epoch": epoch})
        if epoch == 3 and config["stays"]:
            wait_for("never")
        time.sleep(0.05)

"""
    pressed = []

    def act(text, keys):
        if not pressed and "run resnet  running" in text:
            pressed.append(1)
            os.write(keys, b"\x03")
        elif len(pressed) < times and "press Ctrl-C again to stop now" in text:
            pressed.append(2)
            os.write(keys, b"\x03")

    script += f"fit(function=forever, stays={times == 2})"
    result, text = run_on_terminal(SCRIPT + script, cwd=tmp_path, act=act)
    assert result == 130, text
    assert "Traceback" not in text
    lines = screen_lines(text)
    assert any(line.startswith("paceline: run resnet was stopped after") for line in lines), text
    assert "paceline: stopping at the next report; press Ctrl-C again to stop now" in lines
    assert not any(line.startswith(("run resnet", "  rank", "     0")) for line in lines), "the block is gone"


def test_a_dumb_terminal_gets_lines(tmp_path):
    (tmp_path / "go").touch()
    env = {"TERM": "dumb", "PACELINE_PROGRESS_S": "0.2"}
    result, text = run_on_terminal(SCRIPT + "fit()", cwd=tmp_path, env=env, width=200)
    assert result == 0
    assert "\x1b" not in text.replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert re.search(r"^paceline: report \d after \d", text, re.MULTILINE)


def test_a_debugger_has_the_terminal_to_itself(tmp_path):
    script = """
def debugged(config):
    train.report({"epoch": 0})
    breakpoint()
    time.sleep(1)
    print("answer", config["answer"])

fit(function=debugged, num_workers=0, answer=1)
"""
    typed = []

    def act(text, keys):
        if text.rstrip().endswith("(Pdb)") and len(typed) < 2:
            typed.append(1)
            os.write(keys, b"config['answer'] = 42\n" if len(typed) == 1 else b"c\n")

    result, text = run_on_terminal(SCRIPT + script, cwd=tmp_path, act=act, env={"PACELINE_PROGRESS_S": "0.1"})
    assert result == 0, text
    assert "answer 42" in text
    assert "\x1b" not in text
    assert "paceline: report" not in text


@pytest.mark.slow
def test_a_run_goes_on_when_its_terminal_is_closed(tmp_path):
    """As with `disown`: the signal does not end it, and there is nothing to write to any more."""
    script = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
result = fit()
Path("done").write_text(f"{result.metrics['epoch']}")
"""

    def act(text, keys):
        if "report 5" not in text:
            return "stay"
        (tmp_path / "go").touch()
        return "leave"

    result, _ = run_on_terminal(SCRIPT + script, cwd=tmp_path, act=act)
    assert result == 0
    assert (tmp_path / "done").read_text() == "4"
