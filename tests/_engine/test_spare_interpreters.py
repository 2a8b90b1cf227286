"""Spare interpreters: a restart and the next run use them, and none is left behind."""

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from paceline import train
from paceline._engine.local import engine
from paceline._engine.local import spare_interpreters as spares
from paceline.train import BackendConfig, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig


class Spawned(BackendConfig):
    start_method = "spawn"
    preload = ("colorsys",)
    preload_later = ("quopri",)


@pytest.fixture(autouse=True)
def spares_are_kept_from_the_start(monkeypatch):
    # pytest's own variable is another one in each phase of a test; a spare is for the environment it was started in.
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
    monkeypatch.setattr(spares, "MAX_SPARES", 4)
    monkeypatch.setattr(engine, "_PRELOAD_AFTER_S", 0.0)
    yield
    spares._spares.close()


def list_waiting():
    return {spare.process.pid for spare in spares._spares._waiting}


def fit(tmp_path, name, function=None, num_workers=2, **config):
    def plain():
        train.report({"pids": train.collective.gather(os.getpid()), "imported": "colorsys" in sys.modules})

    return DataParallelTrainer(
        function or plain,
        backend_config=Spawned(),
        scaling_config=ScalingConfig(num_workers),
        run_config=RunConfig(storage_path=tmp_path, name=name, **config),
    ).fit()


def test_the_next_run_uses_spare_interpreters_once_each(tmp_path, monkeypatch):
    first = fit(tmp_path, "a").metrics
    there = list_waiting()
    assert len(there) == 2
    assert not there & set(first["pids"])
    second = fit(tmp_path, "b").metrics
    assert set(second["pids"]) == there
    assert second["imported"]
    there, before = list_waiting(), there
    assert len(there) == 2
    assert not there & before
    # A run too short to have others started leaves as many waiting as it took.
    monkeypatch.setattr(engine, "_PRELOAD_AFTER_S", 1000.0)
    assert set(fit(tmp_path, "c").metrics["pids"]) == there
    assert len(list_waiting()) == 2
    spares._spares.close()
    fit(tmp_path, "d")
    assert not list_waiting()


def test_another_environment_gets_its_own_spares_and_the_oldest_others_end_first(tmp_path, monkeypatch):
    fit(tmp_path, "a")
    old = [psutil.Process(pid) for pid in list_waiting()]
    monkeypatch.setenv("FRAMEWORK_FLAGS", "read when it is imported")
    assert not {process.pid for process in old} & set(fit(tmp_path, "b").metrics["pids"])
    assert len(list_waiting()) == 4
    monkeypatch.setenv("FRAMEWORK_FLAGS", "others")
    fit(tmp_path, "c")
    assert len(list_waiting()) == 4
    gone, _ = psutil.wait_procs(old, timeout=240)
    assert len(gone) == 2


def test_a_restart_uses_spare_interpreters(tmp_path):
    def dies_once():
        pids = train.collective.gather(os.getpid())
        if train.get_checkpoint() is None:
            train.report({"pids": pids}, checkpoint=train.Checkpoint.from_dict({"pids": pids}))
            if train.get_context().get_world_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            train.collective.barrier()
        train.report({"pids": pids, "first": train.get_checkpoint().to_dict()["pids"]})

    ended = fit(tmp_path, "a", dies_once, failure_config=FailureConfig(max_failures=1)).metrics
    assert not set(ended["pids"]) & set(ended["first"])


def test_does_not_use_a_killed_spare(tmp_path):
    fit(tmp_path, "a")
    there = sorted(list_waiting())
    psutil.Process(there[0]).kill()
    spares._spares._waiting[0].process.wait()
    pids = fit(tmp_path, "b").metrics["pids"]
    assert there[0] not in pids
    assert there[1] in pids


def test_a_module_that_cannot_be_imported_ahead_is_left_to_the_worker(tmp_path, monkeypatch):
    (tmp_path / "broken_on_import.py").write_text("raise RuntimeError('broken on purpose')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Spawned, "preload", ("broken_on_import",))
    assert not fit(tmp_path, "a").metrics["imported"]


DRIVER = """
import os, signal, sys
from paceline import train
from paceline._engine.local import engine, spare_interpreters as spares
from paceline.train import BackendConfig, DataParallelTrainer, RunConfig

engine._PRELOAD_AFTER_S = 0.0


class Spawned(BackendConfig):
    start_method = "spawn"


def function():
    train.report({})


if __name__ == "__main__":
    DataParallelTrainer(
        function, backend_config=Spawned(), run_config=RunConfig(storage_path=sys.argv[1], name="a")
    ).fit()
    print(*[spare.process.pid for spare in spares._spares._waiting], flush=True)
    if "killed" in sys.argv:
        if "forks" in sys.argv and os.fork() == 0:
            signal.pause()  # holds the spare's line open
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", [[], ["killed"], ["killed", "forks"]], ids=["ends", "is killed", "leaves a fork"])
def test_spares_end_with_their_driver(run_script, tmp_path, how, processes_in):
    ended = run_script(DRIVER, str(tmp_path / "runs"), *how)
    assert ended.returncode == (-signal.SIGKILL if how else 0), ended.stderr
    pids = [int(word) for word in ended.stdout.split()[-1:]]
    assert pids
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(left, timeout=240)
    for process in processes_in(Path(tmp_path)):
        process.kill()
    # One that nobody has collected yet has ended all the same.
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
