"""Real runs that the commands are shown: made once for a session, by scripts as people write them, and only read.

A test that changes a run takes a copy of it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_runs import SCRIPT, SEARCH, Runs, begun_script, killed_at_step_4


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """`complete`, `lower` (the same with another lr), `failing`, `killed` and `search` in one storage path."""
    place = tmp_path_factory.mktemp("cli")
    (place / "runs").mkdir()
    made = Runs(place / "runs", place / "train.py")
    made.script.write_text(SCRIPT)
    (place / "search.py").write_text(SEARCH)
    for name, what, lr in (("complete", "complete", 0.1), ("lower", "complete", 0.05)):
        assert begun_script(made, name, what, lr).wait() == 0, (place / f"{name}.out").read_text()
    assert begun_script(made, "failing", "failing").wait() == 1
    killed_at_step_4(made, "killed")
    command = [sys.executable, "search.py", str(made.root)]
    subprocess.run(command, cwd=place, check=True, capture_output=True)
    return made


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


Command = Callable[..., Ended]


@pytest.fixture
def paceline(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Calls the command in this process, in `tmp_path`, with the runs' place as the storage path."""
    from paceline.cli import main

    monkeypatch.setenv("PACELINE_STORAGE_PATH", str(runs.root))
    monkeypatch.chdir(tmp_path)

    def paceline(*arguments: str) -> Ended:
        capfd.readouterr()
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
        return Ended(code, *capfd.readouterr())

    return paceline


@pytest.fixture
def begun(runs: Runs, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Begins the command in a process of its own."""
    left = []

    def begun(*arguments: str, **variables: str) -> "subprocess.Popen[str]":
        env = {**os.environ, "PACELINE_STORAGE_PATH": str(runs.root), "TMPDIR": str(tmp_path), **variables}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline", *arguments], cwd=tmp_path, env=env, text=True, **pipes
        )
        left.append(process)
        return process

    yield begun
    for process in left:
        process.kill()
        process.communicate()


@pytest.fixture
def copied(runs: Runs, tmp_path: Path) -> Callable[[str], Path]:
    """A run to be changed: a copy of it, whole, by its path."""

    def copied(name: str) -> Path:
        target = tmp_path / "copies" / name
        shutil.copytree(runs.root / name, target)
        return target

    return copied
