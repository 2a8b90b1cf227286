"""Whole scripts, as people write them for several releases of Ray, run after `paceline migrate` and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted(path.stem for path in (Path(__file__).parent / "scripts").glob("*.py"))
LIMIT_S = 240
QUICK = {"checkpoint_resume", "tune_asha", "tune_class"}


def list_scripts():
    for name in SCRIPTS:
        marks = [] if name in QUICK else [pytest.mark.slow]
        yield pytest.param(name, marks=marks)


def run_python(*arguments: str, cwd: Path) -> None:
    env = {**os.environ, "PACELINE_STORAGE_PATH": str(cwd / "runs")}
    ended = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert ended.returncode == 0, ended.stderr[-4000:]


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("name", [*list_scripts()])
def test_a_script_runs_after_its_imports_are_changed(name, tmp_path):
    source = (Path(__file__).parent / "scripts" / f"{name}.py").read_text()
    script = tmp_path / "script.py"
    script.write_text(source)
    run_python("-m", "paceline", "migrate", "script.py", cwd=tmp_path)
    changed = script.read_text()
    # Only lines with a name of Ray's have changed, and none has come or gone.
    before, after = source.splitlines(), changed.splitlines()
    assert {new for old, new in zip(before, after, strict=True) if "ray" not in old} <= {*before}
    run_python("script.py", cwd=tmp_path)
