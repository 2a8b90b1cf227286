"""Runs that are driven at the same time by threads of one process: each is as if it were alone."""

import os
import threading

from paceline import train
from paceline._engine.local import engine, spares
from paceline.train import BackendConfig, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

NUM_RUNS = 8
NUM_REPORTS = 4


def all_at_once(*calls):
    """What each returns or raises, called at the same instant in threads of their own."""
    came = threading.Barrier(len(calls))
    found = [None] * len(calls)

    def call(index):
        came.wait()
        try:
            found[index] = calls[index]()
        except BaseException as error:
            found[index] = error

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def counting(config):
    """Says who it is in each of its reports, and fails on the way once where it is told to."""
    number, failed = config["number"], config["failed"]
    saved = train.get_checkpoint()
    begun = saved.to_dict()["step"] if saved is not None else 0
    rank = train.get_context().get_world_rank()
    for step in range(begun + 1, NUM_REPORTS + 1):
        if failed is not None and step == 3 and rank == 1 and not os.path.exists(failed):
            open(failed, "w").close()
            raise RuntimeError(f"run {number} fails once")
        state = {"number": number, "step": step} if rank == 0 else None
        checkpoint = train.Checkpoint.from_dict(state) if state is not None else None
        train.report({"number": number, "step": step}, checkpoint=checkpoint)
    return number


def test_eight_fits_in_eight_threads_come_to_what_each_would_alone(tmp_path):
    def fit(number):
        failed = str(tmp_path / f"failed-{number}") if number % 2 else None
        return DataParallelTrainer(
            counting,
            train_loop_config={"number": number, "failed": failed},
            scaling_config=ScalingConfig(2),
            run_config=RunConfig(
                storage_path=tmp_path, name=f"run-{number}", failure_config=FailureConfig(max_failures=1)
            ),
        ).fit()

    results = all_at_once(*(lambda number=number: fit(number) for number in range(NUM_RUNS)))
    assert [getattr(result, "return_value", result) for result in results] == list(range(NUM_RUNS))
    for number, result in enumerate(results):
        frame = result.metrics_dataframe
        reported = zip(frame["number"], frame["step"], strict=True)
        assert sorted(set(reported)) == [(number, step) for step in range(1, NUM_REPORTS + 1)]
        assert result.checkpoint.to_dict() == {"number": number, "step": NUM_REPORTS}


class Spawned(BackendConfig):
    start_method = "spawn"


def test_a_run_that_took_the_interpreter_of_another_thread_outlives_that(tmp_path, monkeypatch):
    """An interpreter is told of the end of the thread that started it, which need not be the one that uses it."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
    monkeypatch.setattr(spares, "MAX_SPARES", 2)
    monkeypatch.setattr(engine, "_RIPEN_AFTER_S", 0.0)
    started, go_on = tmp_path / "started", tmp_path / "go_on"

    def fit(name, function):
        return DataParallelTrainer(
            function,
            backend_config=Spawned(),
            run_config=RunConfig(storage_path=tmp_path, name=name),
        ).fit()

    def lender():
        import time

        train.report({"pid": os.getpid()})
        while not started.exists():
            time.sleep(0.01)

    def borrower():
        import time

        started.touch()
        while not go_on.exists():
            time.sleep(0.01)
        train.report({"pid": os.getpid()})

    lending = threading.Thread(target=fit, args=("lender", lender))
    try:
        lending.start()
        while not spares._spares._waiting:
            assert lending.is_alive()
            threading.Event().wait(0.01)
        there = {found.process.pid for found in spares._spares._waiting}

        def borrowed():
            try:
                return fit("borrower", borrower)
            finally:
                go_on.touch()

        found = []
        borrowing = threading.Thread(target=lambda: found.append(borrowed()))
        borrowing.start()
        lending.join()
        # The thread that started the borrower's interpreter is gone, and so is what ends with it.
        go_on.touch()
        borrowing.join()
    finally:
        spares._spares.close()
    assert found[0].metrics["pid"] in there
