"""The commands of docs/guides/schedulers.md, to be run as they stand there, and a project to run them in."""

import re
import shutil
from pathlib import Path

HERE = Path(__file__).parent
_PAGE = HERE.parents[1] / "docs" / "guides" / "schedulers.md"
_TRAIN = """\
import sys

import train_until_told

assert sys.argv[1:] == ["--lr", "0.1"]
sys.argv[1:] = {arguments}
train_until_told.main()
"""


def read_commands(title):
    """The commands in the first console of a section, each as one text for a shell."""
    section = _PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    console = re.search(r"^```console\n(.*?)^```", section, re.DOTALL | re.MULTILINE)[1]
    return re.findall(r"^\$ ((?:.*\\\n)*.*)", console, re.MULTILINE)


def write_project(directory, *arguments):
    """Write a `train.py`, which hands these arguments to `train_until_told.py`."""
    directory.mkdir()
    shutil.copy(HERE / "train_until_told.py", directory)
    (directory / "train.py").write_text(_TRAIN.format(arguments=[str(argument) for argument in arguments]))
