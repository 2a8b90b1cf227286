"""Runs an example as a user would."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs an example and returns its exit status and all it printed.

    `kill` kills a worker from outside: the script knows nothing of it. `stop` is a signal for the driver, which gets it
    after it printed a line that has `stop_after`.
    """

    def run(
        name: str,
        *args: str,
        kill: str | None = None,
        stop_after: str | None = None,
        stop: signal.Signals = signal.SIGINT,
        env: Mapping[str, str] | None = None,
    ) -> tuple[int, str]:
        with_faults = ["-m", "paceline.testing.faults", "--kill", kill] if kill is not None else []
        lines = []
        with subprocess.Popen(
            [sys.executable, *with_faults, str(EXAMPLES / name), "--storage-path", str(tmp_path), *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            # Interpreters that wait for the next run, with a framework imported, would cost seconds for nothing.
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PACELINE_PREWARM": "0", **(env or {})},
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if stop_after is not None and stop_after in line:
                    process.send_signal(stop)
        return process.returncode, "".join(lines)

    return run
