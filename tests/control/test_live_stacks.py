"""`paceline stacks`: what every rank does, also one that cannot say so."""

import functools
import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from live_runs import live, run_command, standing

from paceline import data, train
from paceline._control import request_handler
from paceline._control.events import DiagnosticFileWritten
from paceline._control.requests import StacksRequest
from paceline.train import DataParallelTrainer

HOSTILE = "<script>alert(1)</script>\x1b[31m;fake 99"


def with_a_thread(config):
    """Stands in a function with a hostile name, and has a thread beside it."""
    ended = threading.Event()
    beside = threading.Thread(target=ended.wait, name="loads-\x1b[2Jdata")
    beside.start()
    namespace: dict[str, Any] = {"standing": standing, "config": config}
    exec(compile("def f():\n    standing(config)\n", "hostile.py", "exec"), namespace)
    stands = namespace["f"]
    stands.__code__ = stands.__code__.replace(co_name=HOSTILE, co_qualname=HOSTILE)
    try:
        stands()
    finally:
        ended.set()
        beside.join()


def test_every_rank_shows_where_its_threads_stand_and_a_stopped_one_is_named(tmp_path):
    with live(with_a_thread, tmp_path / "run", config={"at": str(tmp_path)}, workers=2) as run:
        run.until(lambda: all((tmp_path / f"stands_{rank}").exists() for rank in (0, 1)) and len(run.pids()) == 2)
        answer = run.ask(StacksRequest())
        assert answer.ok, answer
        assert [stacks.rank for stacks in answer.stacks] == [0, 1]
        for stacks in answer.stacks:
            assert stacks.answers
            main, *others = stacks.threads
            assert (main.name, main.lines[-1].function) == ("main thread", "standing")
            assert main.calls in ("time.sleep", "Path", "exists", "")
            assert [line.own for line in main.lines if line.function == "standing"] == [True]
            assert any("loads-" in thread.name and thread.lines[-1].function == "wait" for thread in others)
        (file,) = answer.files
        assert file.path == "logs/attempt_1/stacks.txt"
        written = (run.path / file.path).read_text()
        assert "in standing" in written
        assert "\x1b" not in written + answer.text
        assert [note.path for note in run.of(DiagnosticFileWritten)] == [file.path]
        assert run.ask(StacksRequest((1,))).stacks[0].rank == 1
        refused = run.ask(StacksRequest((2,)))
        assert (refused.state, refused.text) == ("refused", "unknown rank 2; the ranks are 0 to 1")

        os.kill(run.pids()[1], signal.SIGSTOP)
        try:
            completed = run_command("stacks", str(run.path))
        finally:
            os.kill(run.pids()[1], signal.SIGCONT)
        assert completed.returncode == 1, completed.stderr
        assert "rank 1 does not answer: its process is stopped, by a signal such as SIGSTOP" in completed.stdout
        assert "in standing" in completed.stdout
        assert all(stacks.answers for stacks in run.ask(StacksRequest()).stacks), "it answers again when it goes on"
        completed = run_command("stacks", str(run.path), "--rank", "0", "--json")
        assert [each["rank"] for each in json.loads(completed.stdout)["stacks"]] == [0]
        (tmp_path / "go").touch()


def keeps_the_gil(config):
    train.report({"n": 1})
    Path(config["at"], "stands_0").touch()
    # C code that gives nobody a turn, for longer than any test lasts.
    re.match(r"(a?){60}a{60}$", "a" * 60)


@pytest.mark.slow
def test_a_rank_that_keeps_the_interpreter_is_reported_as_computing(tmp_path, monkeypatch):
    monkeypatch.setattr(request_handler, "STACKS_TIMEOUT_S", 2.0)
    with live(keeps_the_gil, tmp_path / "run", config={"at": str(tmp_path)}) as run:
        run.until((tmp_path / "stands_0").exists)
        while (stacks := run.ask(StacksRequest()).stacks[0]).answers:
            pass  # It has not come to its C code yet.
        assert "computes without answering" in stacks.condition


def reads(config):
    for _ in train.get_dataset_shard("train").iter_batches(batch_size=10):
        train.report({"n": 1})


def test_a_data_process_shows_where_it_stands(tmp_path):
    def tokenize(batch):
        if 5000 in batch["id"]:
            Path(tmp_path, "stands").touch()
            threading.Event().wait()
        return batch

    dataset = data.range(10_000, override_num_blocks=10).map_batches(tokenize)
    trainer = functools.partial(DataParallelTrainer, datasets={"train": dataset})
    with live(reads, tmp_path / "run", config={}, trainer=trainer) as run:
        run.until((tmp_path / "stands").exists)
        # Other processes may still be at work on earlier rows.
        run.until(lambda: len(run.ask(StacksRequest()).stacks) == 2)
        answer = run.ask(StacksRequest())
        rank, process = answer.stacks
        assert (rank.rank, process.rank, process.answers) == (0, -1, True)
        assert re.fullmatch(r"data process \d+, map_batches\(tokenize\) of range .*", process.title)
        assert [line.function for line in process.threads[0].lines if line.own] == ["tokenize"]
        assert f"{process.title}: state" in (run.path / answer.files[0].path).read_text()
        completed = run_command("stacks", str(run.path))
        assert re.search(r"data process \d+, map_batches\(tokenize\)(.|\n)*> .* in tokenize", completed.stdout)
