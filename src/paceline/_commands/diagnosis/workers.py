"""Check that workers start: a subprocess runs two of them in a temporary directory; each reports and exits."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial

from paceline._commands.diagnosis import DiagnosisLine, format_duration
from paceline._core import settings, system

_line = partial(DiagnosisLine, "workers")

PATIENCE_S = 120.0

_SCRIPT = """
import json, sys, time
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig

def function():
    train.report({"rank": train.get_context().get_world_rank()}, checkpoint=Checkpoint.from_dict({"step": 1}))

def seconds(name):
    began = time.perf_counter()
    config = RunConfig(name=name, storage_path=sys.argv[1])
    DataParallelTrainer(function, scaling_config=ScalingConfig(2), run_config=config).fit()
    return time.perf_counter() - began

if __name__ == "__main__":
    took = [seconds("first"), seconds("second")]
    print()
    print(json.dumps(took))
"""


def check_workers() -> Iterator[DiagnosisLine]:
    forked = system.is_fork_safe() and settings.load().start_method == "fork"
    how = "forked from a warm process" if forked else "each a fresh interpreter"
    with tempfile.TemporaryDirectory(prefix="paceline-doctor-") as place:
        script = f"{place}/look.py"
        with open(script, "w") as file:
            file.write(_SCRIPT)
        try:
            command = [sys.executable, script, place]
            with settings.override_environment({"PACELINE_VERBOSITY": "0", "PACELINE_ENGINE": "local"}):
                ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=place)
        except subprocess.TimeoutExpired:
            hint = "a firewall, or a limit on processes or memory, may prevent workers from starting"
            yield _line("start", "fail", f"two workers did not finish within {PATIENCE_S:.0f} s", hint)
            return
    if ended.returncode:
        yield _line("start", "fail", f"two workers did not run: {_last_line(ended.stderr)}")
        return
    first, second = json.loads(ended.stdout.rstrip().rpartition("\n")[2])
    took = f"{format_duration(first)}, and {format_duration(second)} the next time"
    hint = "on Linux, without PACELINE_PORTABLE and PACELINE_START_METHOD=spawn, workers start faster"
    text = f"two, {how}, with a report and a checkpoint each: {took}"
    yield _line("start", "ok", text, "" if forked else hint)


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line and not line.startswith("hint:")]
    return lines[-1] if lines else "no output"
