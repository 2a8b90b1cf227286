"""A user's own Backend: led from rank 0, on all workers, before training and after it."""

import contextlib
import os

import pytest

from paceline import train
from paceline.train import Backend, BackendConfig, DataParallelTrainer
from paceline.train.backend import require

SEEN = []
"""What was done in this process: in a worker, by a backend."""


def note(word):
    SEEN.append(word)
    return os.getpid()


def observed():
    return list(SEEN)


def report_what_was_seen():
    train.report({"seen": train.collective.gather(observed())})


class Noting(Backend):
    def on_start(self, worker_group, backend_config):
        pids = worker_group.execute(note, "started")
        assert len(set(pids)) == len(worker_group) == worker_group.num_workers
        assert worker_group.execute_single(1, note, word="only rank 1") == pids[1]
        worker_group.execute(note, backend_config.word)

    def on_training_start(self, worker_group, backend_config):
        worker_group.execute(note, "training")

    def on_shutdown(self, worker_group, backend_config):
        backend_config.path.write_text(" ".join(str(each) for each in worker_group.execute(observed)))


class NotingConfig(BackendConfig):
    backend_cls = Noting

    def __init__(self, path):
        self.word = "from the config"
        self.path = path

    @property
    def train_func_context(self):
        @contextlib.contextmanager
        def within():
            note("within")
            yield
            note("after")

        return within


def test_a_backend_leads_all_workers_before_training_and_after_it(tmp_path, fit):
    path = tmp_path / "seen"
    by_rank = fit(report_what_was_seen, backend_config=NotingConfig(path)).metrics["seen"]
    before = ["started", "from the config", "training", "within"]
    assert by_rank == [before, ["started", "only rank 1", *before[1:]]]
    assert path.read_text() == " ".join(str([*each, "after"]) for each in by_rank)


def backend_that_calls(on_start):
    backend = type("Calls", (Backend,), {"on_start": lambda self, worker_group, backend_config: on_start(worker_group)})
    return type("Config", (BackendConfig,), {"backend_cls": backend})()


def test_a_function_that_raises_on_a_worker_fails_that_worker(fit):
    def fail_on_rank_1():
        if train.get_context().get_world_rank() == 1:
            raise ValueError("rank 1 has no such device")

    config = backend_that_calls(lambda group: group.execute(fail_on_rank_1))
    with pytest.raises(train.TrainingFailedError, match=r"rank 1.*ValueError: rank 1 has no such device") as failed:
        fit(lambda: None, backend_config=config)
    assert isinstance(failed.value.worker_failures[1], ValueError)


def test_an_order_to_a_worker_that_is_not_there_is_refused(fit):
    config = backend_that_calls(lambda group: group.execute_single(2, os.getpid))
    with pytest.raises(train.TrainingFailedError, match="worker_index must be an integer from 0 to 1, got 2"):
        fit(lambda: None, backend_config=config)


def test_what_is_not_installed_is_named_with_the_extra_that_installs_it():
    class Config(BackendConfig):
        requires = ("json", "no_such_framework")
        extra = "such"

    with pytest.raises(ImportError, match=r'needs no_such_framework, .*\n\nhint: pip install "paceline\[such\]"'):
        DataParallelTrainer(lambda: None, backend_config=Config())
    with pytest.raises(ImportError, match="hint: pip install no_such_framework"):
        require("It", ("no_such_framework.part", "no_such_framework"), "")
