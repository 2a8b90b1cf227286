"""Hangs planted in real workers: the sentence names the rank, its line and what the others wait for."""

import contextlib
import ctypes
import hashlib
import inspect
import os
import pdb
import queue
import re
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

from paceline import train
from paceline._storage.files import LocalFiles
from paceline.train import (
    Checkpoint,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    UserCallback,
    WorkerGroupError,
)
from paceline.train.drive import Seams

FOR_EVER_S = 1000


@pytest.fixture
def hang(tmp_path):
    """Runs a function that hangs and returns what was said of it."""

    def hang(function, num_workers=2, *, timeout_s=1.0):
        with pytest.raises(WorkerGroupError) as caught:
            fit(tmp_path, function, num_workers, timeout_s=timeout_s, action="fail")
        line = str(caught.value).splitlines()[2]
        assert "hang: " in line
        return line.partition("hang: ")[2]

    return hang


def fit(path, function, num_workers=2, *, timeout_s=1.0, action="warn", max_failures=0, name="run", callbacks=()):
    return DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(num_workers),
        run_config=RunConfig(
            name=name,
            storage_path=path,
            callbacks=callbacks,
            failure_config=FailureConfig(max_failures, hang_timeout_s=timeout_s, hang_action=action),
        ),
    ).fit()


def rank():
    return train.get_context().get_world_rank()


def line_of(function, text):
    """Where a line of a function is, as it is told."""
    lines, first = inspect.getsourcelines(function)
    at = next(number for number, line in enumerate(lines, first) if text in line)
    return f"test_hangs.py:{at} in function"


def test_a_rank_asleep_is_named_with_its_line_and_who_waits_for_it(hang, tmp_path):
    def function():
        train.report({"i": 1})
        if rank() == 1:
            time.sleep(FOR_EVER_S)
        train.collective.barrier()

    told = hang(function)
    assert re.match(
        r"rank 1 has stood at .*:\d+ in function \(time\.sleep\) for \d+ s; rank 0 waits for it in pace", told
    )
    assert line_of(function, "time.sleep") in told
    assert line_of(function, "barrier()") in told
    stacks = tmp_path / "run" / "logs" / "attempt_1" / "stacks.txt"
    assert stat.S_IMODE(stacks.stat().st_mode) == 0o600
    text = stacks.read_text()
    assert "rank 0: " in text
    assert "rank 1: " in text
    assert "calling time.sleep" in text


def test_code_that_keeps_the_gil_is_told_with_the_last_report(hang):
    def function():
        train.report({"i": 1})
        if rank() == 1:
            ctypes.PyDLL(None).sleep(FOR_EVER_S)
        train.collective.barrier()

    told = hang(function)
    assert "rank 1 has been silent for" in told
    assert "holds the GIL" in told
    assert re.search(r"its last report was made at \S*{}".format(line_of(function, "report(").partition(" ")[0]), told)
    assert "rank 0 waits for it" in told


def test_a_stopped_process_is_told_as_stopped(hang):
    def function():
        train.report({"i": 1})
        if rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        train.collective.barrier()

    told = hang(function)
    assert "rank 1 is stopped by a signal (SIGSTOP)" in told
    assert "rank 0 waits for it" in told


def test_a_report_with_a_checkpoint_that_only_one_rank_makes_is_told_as_that(hang):
    def function():
        train.report({"i": 1})
        if rank() == 0:
            train.report({"i": 2}, checkpoint=Checkpoint.from_dict({"i": 2}))
        train.collective.barrier()

    told = hang(function)
    assert re.match(r"rank 0 has waited \d+ s in report 2 with a checkpoint at", told)
    assert line_of(function, "checkpoint=") in told
    assert "rank 1 has made 1 and stands in paceline's barrier or broadcast" in told
    assert line_of(function, "barrier()") in told


def test_an_upload_that_storage_does_not_take_is_told_with_the_path(hang, tmp_path):
    def function():
        train.report({"i": 1})
        if rank() == 1:
            held = threading.Lock()
            held.acquire()
            os.fsync = held.acquire  # storage that never says that it has it
        train.report({"i": 2}, checkpoint=Checkpoint(tmp_path / "mine"))

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "weights").write_bytes(b"x")
    told = hang(function)
    assert re.match(rf"rank 1 has stood for \d+ s storing the checkpoint of report 2 at {tmp_path / 'run'} at", told)
    assert line_of(function, "checkpoint=") in told
    assert "rank 0 waits for it in report()" in told


def test_ranks_that_wait_at_places_that_do_not_match_are_told_with_both_lines(hang):
    def function():
        train.report({"i": 1})
        if rank() == 0:
            train.collective.barrier()
        else:
            train.report({"i": 2}, checkpoint=Checkpoint.from_dict({}))

    told = hang(function)
    assert line_of(function, "barrier()") in told
    assert line_of(function, "checkpoint=") in told


def test_a_rank_that_falls_silent_alone_is_told_though_the_others_go_on(hang):
    def function():
        train.report({"i": 0})
        if rank() == 1:
            queue.Queue().get()
        while True:
            train.report({"i": 1})
            time.sleep(0.1)

    told = hang(function, timeout_s=0.5)
    assert re.match(r"rank 1 has stood at \S+ in function \(queue\.get\) for \d+ s$", told)
    assert line_of(function, "queue.Queue()") in told


def test_the_others_that_wait_are_folded_by_where_they_wait(hang):
    def function():
        train.report({"i": 1})
        if rank() == 2:
            time.sleep(FOR_EVER_S)
        train.collective.barrier()

    told = hang(function, 4)
    assert "; ranks 0, 1 and 3 wait for it in paceline's barrier" in told


def suspected(path):
    """Whether a hang is in the journal of the run, which has the source of this file too."""
    return b'"type":"HangSuspected"' in (path / "run" / "journal.jsonl").read_bytes()


def until_told(path):
    while not suspected(path):
        time.sleep(0.2)


def test_a_hang_that_passes_is_told_once_and_so_is_its_end(tmp_path, capsys):
    def function():
        train.report({"i": 1})
        if rank() == 1:
            until_told(tmp_path)
        train.collective.barrier()
        train.report({"i": 2})

    fit(tmp_path, function, timeout_s=0.5)
    said = capsys.readouterr().err
    assert said.count("rank 1 has stood at") == 1
    assert said.count(f"all stacks: {tmp_path / 'run' / 'logs' / 'attempt_1' / 'stacks.txt'}") == 1
    assert len(re.findall(r"paceline: rank 1 moves again after \d+ s", said)) == 1


def test_storage_that_does_not_finish_a_commit_is_told_and_never_restarted_for(tmp_path, capsys):
    class Slow(LocalFiles):
        def rename(self, source, target):
            if target.name.startswith("checkpoint_"):
                until_told(tmp_path)
            super().rename(source, target)

    def function():
        train.report({"i": 1})
        train.report({"i": 2}, checkpoint=Checkpoint.from_dict({"i": 2}))

    trainer = DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(2),
        run_config=RunConfig(
            name="run",
            storage_path=tmp_path,
            failure_config=FailureConfig(hang_timeout_s=0.5, hang_action="fail"),
        ),
    )
    trainer._seams = Seams(files=Slow())
    result = trainer.fit()
    said = capsys.readouterr().err
    assert re.search(
        rf"the checkpoint of report 2 has waited \d+ s for storage at {tmp_path / 'run'}; ranks 0 and 1", said
    )
    assert line_of(function, "checkpoint=") in said
    assert result.checkpoint.to_dict() == {"i": 2}


def test_a_restart_ends_the_hang_and_is_charged_to_the_budget(tmp_path, capsys):
    def function():
        last = train.get_checkpoint()
        train.report({"i": 1}, checkpoint=Checkpoint.from_dict({"i": 1}))
        if last is None and rank() == 1:
            ctypes.PyDLL(None).sleep(FOR_EVER_S)
        train.collective.barrier()
        train.report({"i": 2, "restored": last is not None})

    result = fit(tmp_path, function, action="restart", max_failures=1)
    assert result.metrics == {"i": 2, "restored": True}
    assert "; the workers are ended" in capsys.readouterr().err
    with pytest.raises(WorkerGroupError, match="on attempt 2 of 2"):
        fit(tmp_path, lambda: (train.report({}), time.sleep(FOR_EVER_S)), action="restart", max_failures=1, name="two")


def test_a_callback_hears_of_a_hang_that_ends_the_run(tmp_path):
    heard = []

    class Callback(UserCallback):
        def after_exception(self, run_context, worker_exceptions):
            heard.append(worker_exceptions)

    with pytest.raises(WorkerGroupError):
        fit(tmp_path, lambda: (train.report({}), time.sleep(FOR_EVER_S)), 1, action="fail", callbacks=[Callback()])
    assert "time.sleep" in str(heard[0][0])


# What is no hang


def work_for(seconds):
    """Python code as it is in a long evaluation: calls and lines, one after the other."""
    until = time.monotonic() + seconds
    words = {}
    while time.monotonic() < until:
        for number in range(100):
            word = str(number * 7)
            words[word] = words.get(word, 0) + len(word)
        total = sum(words.values())
        words = {word: count % total for word, count in words.items()}


def test_a_step_that_works_at_changing_lines_is_slow_and_not_hung(tmp_path):
    def function():
        train.report({"i": 1})
        work_for(3)
        train.report({"i": 2})

    fit(tmp_path, function, timeout_s=0.3)
    assert not suspected(tmp_path)


def test_a_step_that_computes_in_one_long_call_is_slow_and_not_hung(tmp_path):
    def function():
        train.report({"i": 1})
        until = time.monotonic() + 2
        while time.monotonic() < until:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 300_000)
        train.report({"i": 2})

    fit(tmp_path, function, timeout_s=0.8)
    assert not suspected(tmp_path)


def test_a_rank_that_works_is_no_hang_while_the_others_wait_for_it(tmp_path):
    def function():
        train.report({"i": 1})
        if rank() == 0:
            work_for(4)
        train.collective.barrier()
        train.report({"i": 2})

    fit(tmp_path, function, timeout_s=0.3)
    assert not suspected(tmp_path)


BUSY = "import time; until = time.monotonic() + 1.5\nwhile time.monotonic() < until: pass"


def test_a_rank_that_waits_for_a_process_that_computes_is_no_hang(tmp_path):
    def function():
        train.report({"i": 1})
        subprocess.run([sys.executable, "-c", BUSY], check=True)
        train.report({"i": 2})

    fit(tmp_path, function, 1, timeout_s=0.8)
    assert not suspected(tmp_path)


def test_workers_that_are_throttled_to_a_tenth_are_not_hung(tmp_path):
    def function():
        (tmp_path / f"pid-{os.getpid()}").touch()
        train.report({"i": 0})
        for i in range(3):
            sum(i * i for i in range(400_000))
            train.report({"i": i})

    over = threading.Event()
    throttle = threading.Thread(target=throttled, args=(tmp_path, over))
    throttle.start()
    try:
        fit(tmp_path, function, timeout_s=0.5)
    finally:
        over.set()
        throttle.join()
    assert not suspected(tmp_path)


def throttled(path, over):
    """Lets the workers that said who they are run for a tenth of the time."""
    while not over.is_set():
        pids = [int(found.name.partition("-")[2]) for found in path.glob("pid-*")]
        for number, span_s in ((signal.SIGSTOP, 0.18), (signal.SIGCONT, 0.02)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            over.wait(span_s)


def test_a_worker_in_a_debugger_is_left_alone(tmp_path):
    def function():
        train.report({"i": 1})
        if rank() == 1:
            answer, question = os.pipe()
            threading.Timer(3, os.write, (question, b"continue\n")).start()
            pdb.Pdb(stdin=os.fdopen(answer), stdout=sys.stdout, nosigint=True).set_trace()
        train.collective.barrier()

    fit(tmp_path, function, timeout_s=0.3)
    assert not suspected(tmp_path)


def test_a_run_in_this_process_is_never_hurried(tmp_path):
    def function():
        train.report({"i": 1})
        time.sleep(1.5)
        train.report({"i": 2})

    fit(tmp_path, function, 0, timeout_s=0.1)
    assert not suspected(tmp_path)
