"""Real runs for the commands to read: made once for a session by scripts as people write them.

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
from real_runs import ODD_SCRIPT, SCRIPT, SEARCH, Runs, kill_at_step_4, start_script


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The runs of docs/watching/command-line.md in one storage path.

    `resnet` and `resnet-2` (with another lr) are complete, `bert` failed, `vit` was killed, `sweep` is a search.
    """
    place = tmp_path_factory.mktemp("cli")
    runs = Runs.in_directory(place, SCRIPT)
    (place / "search.py").write_text(SEARCH)
    drivers = [
        start_script(runs, "resnet", "complete"),
        start_script(runs, "resnet-2", "complete", lr=0.05),
        start_script(runs, "bert", "failing"),
        subprocess.Popen([sys.executable, "search.py", str(runs.root)], cwd=place, stderr=subprocess.DEVNULL),
    ]
    kill_at_step_4(runs, "vit")
    assert [driver.wait() for driver in drivers] == [0, 0, 1, 0], (place / "resnet.out").read_text()
    return runs


@pytest.fixture(scope="session")
def odd_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of another script: escape codes in texts, numbers that JSON lacks, a best checkpoint before the last."""
    runs = Runs.in_directory(tmp_path_factory.mktemp("odd"), ODD_SCRIPT)
    assert start_script(runs, "odd", "complete", looks="odd").wait() == 0
    return runs.root / "odd"


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str

    def assert_refused(self, *texts: str) -> None:
        assert self.code == 2, self
        assert [text for text in texts if text not in self.err] == [], self.err


Command = Callable[..., CommandResult]


@pytest.fixture
def paceline(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Calls the command in this process, in `tmp_path`, with the runs' place as the storage path."""
    from paceline.cli import main

    monkeypatch.setenv("PACELINE_STORAGE_PATH", str(runs.root))
    monkeypatch.chdir(tmp_path)

    def paceline(*arguments: str) -> CommandResult:
        capfd.readouterr()
        try:
            code = main(arguments)
        except SystemExit as result:
            code = result.code
        return CommandResult(code, *capfd.readouterr())

    return paceline


@pytest.fixture
def start_command(runs: Runs, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts the command in a process of its own."""
    processes = []

    def start(*arguments: str, **variables: str) -> "subprocess.Popen[str]":
        env = {**os.environ, "PACELINE_STORAGE_PATH": str(runs.root), "TMPDIR": str(tmp_path), **variables}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline", *arguments], cwd=tmp_path, env=env, text=True, **pipes
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def copy_run(runs: Runs, tmp_path: Path) -> Callable[[str | Path], Path]:
    """Copies a run, by name or path, for a test that changes it."""

    def copy(run: str | Path) -> Path:
        source = runs.root / run
        return shutil.copytree(source, tmp_path / "copies" / source.name)

    return copy
