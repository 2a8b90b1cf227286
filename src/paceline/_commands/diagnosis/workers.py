"""Workers: two are started as runs start theirs, report and end, from a process of its own, in a place of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from paceline._commands.diagnosis.line import Line, took
from paceline._core import settings, system

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


def looked_at() -> Iterator[Line]:
    forked = system.fork_is_safe() and settings.load().start_method == "fork"
    how = "forked from a warm process" if forked else "each a fresh interpreter"
    with tempfile.TemporaryDirectory(prefix="paceline-doctor-") as place:
        script = f"{place}/look.py"
        with open(script, "w") as file:
            file.write(_SCRIPT)
        try:
            command = [sys.executable, script, place]
            with settings.variables_set({"PACELINE_VERBOSITY": "0", "PACELINE_ENGINE": "local"}):
                ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=place)
        except subprocess.TimeoutExpired:
            hint = "a firewall, or a limit on processes or memory, may keep workers from starting"
            yield Line("workers", "start", "fail", f"two workers have not ended after {PATIENCE_S:.0f} s", hint)
            return
    if ended.returncode:
        yield Line("workers", "start", "fail", f"two workers did not run: {_last(ended.stderr)}")
        return
    first, second = json.loads(ended.stdout.rstrip().rpartition("\n")[2])
    text = f"two, {how}, with a report and a checkpoint each: {took(first)}, and {took(second)} the next time"
    if forked:
        yield Line("workers", "start", "ok", text)
        return
    hint = "on Linux, without PACELINE_PORTABLE and PACELINE_START_METHOD=spawn, they start faster"
    yield Line("workers", "start", "ok", text, hint)


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line and not line.startswith("hint:")]
    return lines[-1] if lines else "it said nothing"
