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


def commands():
    for block in BLOCKS:
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, told = part.partition("\n")
            yield pytest.param(line, told, id=line)


@pytest.mark.parametrize(("line", "told"), [*commands()])
def test_a_command_prints_what_the_page_says(line, told, runs, paceline, monkeypatch, tmp_path):
    program, *arguments = shlex.split(line.partition(" | ")[0])
    assert program == "paceline"
    if "--yes" in arguments:
        shutil.copytree(runs.root, tmp_path / "runs")
        monkeypatch.setenv("PACELINE_STORAGE_PATH", str(tmp_path / "runs"))
    result = paceline(*arguments)
    printed = result.out + result.err
    for place, name in ((runs.root, "/home/me/runs"), (runs.root.parent, "/home/me"), (tmp_path, "/home/me")):
        printed = printed.replace(str(place), name)
    printed = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "host", printed)
    printed = re.sub(r"\S+/bin/python\S*", "/usr/bin/python", printed)
    assert matches(alike(told), alike(printed)), f"$ {line}\n{printed}"


def test_every_command_is_on_the_page():
    assert [name for name in COMMANDS if f"paceline {name}" not in PAGE] == []
