"""A user's own Backend: led from rank 0, on all workers, before training and after it."""

import contextlib
import os

import pytest

from paceline import train
from paceline.train import Backend, BackendConfig, DataParallelTrainer, RunConfig, ScalingConfig
from paceline.train.backend import require

SEEN = []
"""What was done in this process: in a worker, by a backend."""


def noted(word):
    SEEN.append(word)
    return os.getpid()


def seen():
    return list(SEEN)


def reports_what_was_seen():
    train.report({"seen": train.collective.gather(seen())})


class Noting(Backend):
    def on_start(self, worker_group, backend_config):
        pids = worker_group.execute(noted, "started")
        assert len(set(pids)) == len(worker_group) == worker_group.num_workers
        assert worker_group.execute_single(1, noted, word="only rank 1") == pids[1]
        worker_group.execute(noted, backend_config.word)

    def on_training_start(self, worker_group, backend_config):
        worker_group.execute(noted, "training")

    def on_shutdown(self, worker_group, backend_config):
        backend_config.path.write_text(" ".join(str(each) for each in worker_group.execute(seen)))


class NotingConfig(BackendConfig):
    backend_cls = Noting

    def __init__(self, path):
        self.word = "from the config"
        self.path = path

    @property
    def train_func_context(self):
        @contextlib.contextmanager
        def within():
            noted("within")
            yield
            noted("after")

        return within


def fit(tmp_path, function, backend, num_workers=2):
    return DataParallelTrainer(
        function,
        backend_config=backend,
        scaling_config=ScalingConfig(num_workers),
        run_config=RunConfig(storage_path=tmp_path, name="a"),
    ).fit()


def test_a_backend_leads_all_workers_before_training_and_after_it(tmp_path):
    told = tmp_path / "told"
    by_rank = fit(tmp_path, reports_what_was_seen, NotingConfig(told)).metrics["seen"]
    before = ["started", "from the config", "training", "within"]
    assert by_rank == [before, ["started", "only rank 1", *before[1:]]]
    assert told.read_text() == " ".join(str([*each, "after"]) for each in by_rank)


def test_a_function_that_raises_on_a_worker_fails_that_worker(tmp_path):
    def broken():
        if train.get_context().get_world_rank() == 1:
            raise ValueError("rank 1 has no such device")

    class Broken(Backend):
        def on_start(self, worker_group, backend_config):
            worker_group.execute(broken)

    class Config(BackendConfig):
        backend_cls = Broken

    with pytest.raises(train.TrainingFailedError, match=r"rank 1.*ValueError: rank 1 has no such device") as failed:
        fit(tmp_path, lambda: None, Config())
    assert isinstance(failed.value.worker_failures[1], ValueError)


def test_an_order_to_a_worker_that_is_not_there_is_refused(tmp_path):
    class Wrong(Backend):
        def on_start(self, worker_group, backend_config):
            worker_group.execute_single(2, os.getpid)

    class Config(BackendConfig):
        backend_cls = Wrong

    with pytest.raises(train.TrainingFailedError, match="worker_index=2 is none of the 2 workers: use 0 to 1"):
        fit(tmp_path, lambda: None, Config())


def test_what_is_not_installed_is_named_with_the_extra_that_installs_it():
    class Config(BackendConfig):
        requires = ("json", "no_such_framework")
        extra = "such"

    with pytest.raises(
        ImportError, match=r'Config needs no_such_framework, .*\n\nhint: pip install "paceline\[such\]"'
    ):
        DataParallelTrainer(lambda: None, backend_config=Config())
    with pytest.raises(ImportError, match="hint: pip install no_such_framework"):
        require("It", ("no_such_framework.part", "no_such_framework"), "")
