"""`paceline stacks`: what every rank does, also one that cannot say so."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from live_runs import live, standing

from paceline import train
from paceline._control.events import FileMade
from paceline._control.requests import Stacks, asked

HOSTILE = "<script>alert(1)</script>\x1b[31m;fake 99"


def with_a_thread(config: dict[str, Any]) -> None:
    """Stands in a function with a name that no honest code has, and has a thread beside it."""
    ended = threading.Event()
    beside = threading.Thread(target=ended.wait, name="loads-\x1b[2Jdata")
    beside.start()
    namespace: dict[str, Any] = {"standing": standing, "config": config}
    code = compile("def f():\n    standing(config)\n", "hostile.py", "exec")
    exec(code, namespace)
    stands = namespace["f"]
    stands.__code__ = stands.__code__.replace(co_name=HOSTILE, co_qualname=HOSTILE)
    try:
        stands()
    finally:
        ended.set()
        beside.join()


def test_every_rank_shows_where_its_threads_stand(tmp_path: Path) -> None:
    with live(with_a_thread, tmp_path / "run", config={"at": str(tmp_path)}, workers=2) as run:
        run.until(lambda: all((tmp_path / f"stands_{rank}").exists() for rank in (0, 1)))
        answer = asked(run.home, Stacks(), 20.0)
        assert answer.ok, answer
        assert [stacks.rank for stacks in answer.stacks] == [0, 1]
        for stacks in answer.stacks:
            assert stacks.answers
            main, *others = stacks.threads
            assert main.name == "main thread"
            assert main.lines[-1].function == "standing"
            assert main.calls in ("time.sleep", "Path", "exists", "")
            assert [line.own for line in main.lines if line.function == "standing"] == [True]
            assert any("loads-" in thread.name and thread.lines[-1].function == "wait" for thread in others)
        (made,) = answer.files
        assert made.path == "logs/attempt_1/stacks.txt"
        written = (run.path / made.path).read_text()
        assert "in standing" in written
        assert "\x1b" not in written + answer.text
        assert [note.path for note in run.of(FileMade)] == [made.path]
        assert asked(run.home, Stacks((1,)), 20.0).stacks[0].rank == 1
        refused = asked(run.home, Stacks((2,)), 20.0)
        assert (refused.state, refused.text) == ("refused", "there is no rank 2: the run has 2, counted from 0")
        (tmp_path / "go").touch()


def test_a_rank_that_is_stopped_is_said_to_be(tmp_path: Path) -> None:
    with live(standing, tmp_path / "run", config={"at": str(tmp_path)}, workers=2) as run:
        run.until(lambda: len(run.pids()) == 2 and (tmp_path / "stands_1").exists())
        pid = run.pids()[1]
        os.kill(pid, signal.SIGSTOP)
        try:
            shown = subprocess.run(
                [sys.executable, "-m", "paceline", "stacks", str(run.path)], capture_output=True, text=True, timeout=60
            )
            told = asked(run.home, Stacks(), 20.0)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert shown.returncode == 1, shown.stderr
        assert "rank 1 does not answer: its process is stopped, by a signal such as SIGSTOP" in shown.stdout
        assert "in standing" in shown.stdout
        assert [stacks.answers for stacks in told.stacks] == [True, False]
        answered = asked(run.home, Stacks(), 20.0)
        assert all(stacks.answers for stacks in answered.stacks), "and answers again when it goes on"
        shown = subprocess.run(
            [sys.executable, "-m", "paceline", "stacks", str(run.path), "--rank", "0", "--json"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert [each["rank"] for each in json.loads(shown.stdout)["stacks"]] == [0]
        (tmp_path / "go").touch()


def keeps_the_gil(config: dict[str, Any]) -> None:
    import re

    train.report({"n": 1})
    Path(config["at"], "stands_0").touch()
    while not Path(config["at"], "go").exists():
        # Some ten seconds of C code that gives nobody a turn.
        re.match(r"(a?){24}a{24}$", "a" * 24)


def test_a_rank_that_keeps_the_interpreter_is_said_to_compute(tmp_path: Path) -> None:
    with live(keeps_the_gil, tmp_path / "run", config={"at": str(tmp_path)}) as run:
        run.until_at_work(tmp_path / "stands_0")
        began = time.monotonic()
        answer = asked(run.home, Stacks(), 20.0)
        (tmp_path / "go").touch()
        (stacks,) = answer.stacks
        if not stacks.answers:
            assert "computes and answers nobody" in stacks.condition
            assert time.monotonic() - began < 15.0
