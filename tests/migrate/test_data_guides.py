"""What the pages of Ray Data's guide teach and tests of the features do not show, run after `paceline migrate`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GUIDES = Path(__file__).parent / "data_guides"
LIMIT_S = 200

# Each script with a context of its own. All in one process: starting one takes longer than most of them.
RUN_ALL = """
import pathlib, runpy
from paceline.cli import main
from paceline.data import DataContext

assert main(["migrate", "."]) == 0
for script in sorted(pathlib.Path.cwd().glob("*.py")):
    print("running", script.name, flush=True)
    with DataContext.current(DataContext()):
        runpy.run_path(str(script), run_name="__main__")
"""


@pytest.mark.timeout(2 * LIMIT_S)
def test_what_the_guides_teach_works_after_imports_are_changed(tmp_path):
    shutil.copytree(GUIDES, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    env = {**os.environ, "PACELINE_STORAGE_PATH": str(tmp_path / "runs")}
    command = [sys.executable, "-c", RUN_ALL]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
