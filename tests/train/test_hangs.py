"""Hangs planted in real workers: the sentence names the rank, its line and what the others wait for."""

import contextlib
import functools
import inspect
import os
import re
import signal
import stat
import threading
import time

import numpy as np
import pytest

from paceline import data, train
from paceline.train import FailureConfig, UserCallback, WorkerGroupError

FOR_EVER_S = 1000


@pytest.fixture
def fit(fit):
    def fit_watched(function, num_workers=2, *, timeout_s=1.0, action="warn", max_failures=0, **options):
        failures = FailureConfig(max_failures, hang_timeout_s=timeout_s, hang_action=action)
        return fit(function, num_workers, failure_config=failures, **options)

    return fit_watched


@pytest.fixture
def hang(fit):
    """Runs a function that hangs and returns the sentence about it."""

    def hang(function, num_workers=2, **options):
        with pytest.raises(WorkerGroupError) as caught:
            fit(function, num_workers, action="fail", **options)
        line = str(caught.value).splitlines()[2]
        assert "hang: " in line
        return line.partition("hang: ")[2]

    return hang


def rank():
    return train.get_context().get_world_rank()


def line_of(function, text):
    """Where a line of a function is, as it is told."""
    lines, first = inspect.getsourcelines(function)
    at = next(number for number, line in enumerate(lines, first) if text in line)
    return f"test_hangs.py:{at} in function"


def test_a_rank_asleep_is_named_with_its_line_and_who_waits_for_it(hang, tmp_path):
    events = []

    class Callback(UserCallback):
        def after_exception(self, run_context, worker_exceptions):
            events.append(worker_exceptions)

    def function():
        train.report({"i": 1})
        if rank() == 1:
            time.sleep(FOR_EVER_S)
        train.collective.barrier()

    message = hang(function, 3, callbacks=[Callback()])
    assert re.match(
        r"rank 1 has been stuck at .*:\d+ in function \(time\.sleep\) for \d+ s; "
        r"ranks 0 and 2 wait for it in paceline's barrier",
        message,
    )
    assert "time.sleep" in str(events[0][1])
    assert line_of(function, "time.sleep") in message
    assert line_of(function, "barrier()") in message
    stacks = tmp_path / "run" / "logs" / "attempt_1" / "stacks.txt"
    assert stat.S_IMODE(stacks.stat().st_mode) == 0o600
    text = stacks.read_text()
    assert "rank 0: " in text
    assert "rank 1: " in text
    assert "calling time.sleep" in text


def suspected(path):
    """Whether a hang is in the journal of the run, which has the source of this file too."""
    return b'"type":"hang_suspected"' in (path / "run" / "journal.jsonl").read_bytes()


def test_workers_that_are_throttled_to_a_tenth_are_not_hung(fit, tmp_path):
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
        fit(function, timeout_s=0.5)
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


def test_a_run_in_this_process_is_never_hurried(fit, tmp_path):
    def function():
        train.report({"i": 1})
        time.sleep(1)
        train.report({"i": 2})

    fit(function, 0, timeout_s=0.1)
    assert not suspected(tmp_path)


def stick(batch):
    if 5000 in batch["id"]:
        time.sleep(FOR_EVER_S)
    return batch


class Sticking(data.Preprocessor):
    _is_fittable = False

    def _transform_numpy(self, batch):
        return stick(batch)


class Stuck(data.Datasource):
    def get_read_tasks(self, parallelism, *_):
        def read(number):
            yield stick({"id": np.arange(1000 * number, 1000 * (number + 1))})

        return [data.ReadTask(functools.partial(read, number), name=f"part {number}") for number in range(10)]


@pytest.mark.parametrize(
    ("make_dataset", "doing"),
    [
        (lambda: data.range(10_000, override_num_blocks=10).map_batches(stick), "in map_batches(stick), on range"),
        pytest.param(
            lambda: Sticking().transform(data.range(10_000, override_num_blocks=10)),
            "in Sticking, on range (rows 5000 to 5999),",
            marks=pytest.mark.slow,
        ),
        pytest.param(lambda: data.read_datasource(Stuck()), "reading part 5", marks=pytest.mark.slow),
    ],
    ids=["map_batches", "preprocessor", "reader"],
)
def test_a_data_process_that_hangs_is_named_with_its_stage_and_the_users_line(hang, tmp_path, make_dataset, doing):
    def function():
        for _ in train.get_dataset_shard("train").iter_batches(batch_size=100):
            train.report({"i": 1})

    message = hang(function, datasets={"train": make_dataset()})
    stuck = rf"the data process \d+ has been stuck {re.escape(doing)}.* at \S*test_hangs.py:\d+ in stick"
    assert re.match(stuck, message)
    assert re.search(r"\(time\.sleep\) for \d+ s; ranks 0 and 1 wait for it for rows of a dataset at", message)
    assert line_of(function, "iter_batches") in message
    stacks = (tmp_path / "run" / "logs" / "attempt_1" / "stacks.txt").read_text()
    assert re.search(
        r"\ndata process \d+, .*: state S(.|\n)*> \S*test_hangs.py:\d+ in stick\n        calling time.sleep", stacks
    )
