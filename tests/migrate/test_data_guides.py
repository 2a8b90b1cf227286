"""The pages of Ray Data's guide: what each teaches, as a script, run after `paceline migrate` and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

GUIDES = Path(__file__).parent / "data_guides"
WITH_FRAMEWORKS = {
    "batch_inference",
    "iterating_with_frameworks",
    "working_with_pytorch",
    "working_with_tensors",
}
LIMIT_S = 200

# Each script in a directory and a context of its own. All in one process: starting one takes longer than most of them.
RUN_ALL = """
import os, pathlib, runpy
from paceline.cli import main
from paceline.data import DataContext

assert main(["migrate", "."]) == 0
for script in sorted(pathlib.Path.cwd().glob("*/script.py")):
    print("running", script.parent.name, flush=True)
    os.chdir(script.parent)
    with DataContext.current(DataContext()):
        runpy.run_path(str(script), run_name="__main__")
"""


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize(
    "with_frameworks", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "with frameworks"]
)
def test_what_the_guides_teach_works_after_imports_are_changed(with_frameworks, tmp_path):
    names = {path.stem for path in GUIDES.glob("*.py")}
    assert names >= WITH_FRAMEWORKS
    for name in WITH_FRAMEWORKS if with_frameworks else names - WITH_FRAMEWORKS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "script.py").write_text((GUIDES / f"{name}.py").read_text())
    env = {**os.environ, "PACELINE_STORAGE_PATH": str(tmp_path / "runs")}
    command = [sys.executable, "-c", RUN_ALL]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
