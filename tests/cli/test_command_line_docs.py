"""The examples of docs/watching/command-line.md are true: each command is run, and prints what the page says.

Times, sizes, processes and places differ from run to run, and are compared as such; a line of dots stands for some
lines that are left out.
"""

import re
import shlex
import shutil
import socket
from pathlib import Path

import pytest
from real_runs import Runs, begun_script, killed_at_step_4

from paceline.cli import COMMANDS

PAGE = (Path(__file__).parents[2] / "docs" / "watching" / "command-line.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)

LIKE = (
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?", "TIME"),
    (r"\b\d\d:\d\d:\d\d\b", "TIME"),
    (r"\b\d+:\d\d\b|\b[\d.]+ (s|ms)\b|\b\d+ h \d\d min\b", "DURATION"),
    (r"\b[\d.]+ ?([KMGT]?B|bytes)\b", "SIZE"),
    (r"\bpid \d+", "pid N"),
    (r"\b\d+%|\b\d+ %", "SHARE"),
    (r"#+", "#"),
    (r"\d{10}\.\d+", "SECONDS"),
    (r"\bCPU\b|\d+\.\d(?=\s+SIZE\s+cpu)", ""),
)


def alike(text):
    """What of a text does not differ from run to run."""
    for pattern, name in LIKE:
        text = re.sub(pattern, name, text)
    # A bar may be too short to be drawn, and columns are as wide as what is in them.
    return [" ".join(line.replace("#", "").split()) for line in text.rstrip().splitlines()]


def matches(told, printed):
    """Whether lines are as told, where `...` stands for any number of them."""
    if not told:
        return not printed
    if told[0] == "...":
        return any(matches(told[1:], printed[at:]) for at in range(len(printed) + 1))
    return bool(printed) and told[0] == printed[0] and matches(told[1:], printed[1:])


@pytest.fixture(scope="module")
def shown(runs, tmp_path_factory):
    """The runs that the page shows."""
    place = tmp_path_factory.mktemp("shown")
    (place / "runs").mkdir()
    shutil.copy(runs.script, place / "train.py")
    made = Runs(place / "runs", place / "train.py")
    begun = [
        begun_script(made, "resnet", "complete", 0.1, "plain"),
        begun_script(made, "resnet-2", "complete", 0.05, "plain"),
    ]
    assert [process.wait() for process in begun] == [0, 0]
    assert begun_script(made, "bert", "failing", 0.1, "plain").wait() == 1
    killed_at_step_4(made, "vit", "plain")
    shutil.copytree(runs.root / "search", made.root / "sweep")
    return made


def commands():
    for block in BLOCKS:
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, told = part.partition("\n")
            yield pytest.param(line, told, id=line)


@pytest.mark.parametrize(("line", "told"), [*commands()])
def test_a_command_prints_what_the_page_says(line, told, shown, paceline, monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_STORAGE_PATH", str(shown.root))
    program, *arguments = shlex.split(line.partition(" | ")[0])
    assert program == "paceline"
    changes = "--yes" in arguments
    if changes:
        shutil.copytree(shown.root, tmp_path / "runs")
        monkeypatch.setenv("PACELINE_STORAGE_PATH", str(tmp_path / "runs"))
    ended = paceline(*arguments)
    printed = ended.out + ended.err
    for place, name in ((shown.root, "/home/me/runs"), (shown.root.parent, "/home/me"), (tmp_path, "/home/me")):
        printed = printed.replace(str(place), name)
    printed = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "host", printed)
    printed = re.sub(r"\S+/bin/python\S*", "/usr/bin/python", printed)
    assert matches(alike(told), alike(printed)), f"$ {line}\n{printed}"


def test_every_command_is_on_the_page():
    assert [name for name in COMMANDS if f"paceline {name}" not in PAGE] == []


def test_what_differs_is_seen():
    assert alike("a  12 s  3.4 MB") == alike("a 4:07   120 KB")
    assert alike("loss=0.2") != alike("loss=0.3")
    assert matches(["a", "...", "d"], ["a", "b", "c", "d"])
    assert not matches(["a", "...", "d"], ["a", "b"])
