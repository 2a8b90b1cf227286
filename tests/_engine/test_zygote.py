"""The zygote: shared by runs, replaced when lost, and followed by a successor with more imports."""

import gc
import importlib
import json
import os
import select
import socket
import sys
import threading
import time

import psutil
import pytest

from paceline import train
from paceline._core.codec import FrameReader
from paceline._engine.local import engine, launchers
from paceline._engine.local.launchers import close_shared_zygote, shared_zygote
from paceline._engine.local.zygote_channel import Channel
from paceline.train import BackendConfig, DataParallelTrainer, RunConfig, ScalingConfig
from processes import still_running


@pytest.fixture(autouse=True)
def a_zygote_of_its_own():
    close_shared_zygote()
    yield
    close_shared_zygote()


def fit_and_list_imports(tmp_path, name, backend=None):
    """Whether `this`, which nothing imports, and the worker's own module were there when the function began."""
    config = RunConfig(storage_path=tmp_path, name=name)
    names = ["this", "paceline._worker.main"]
    trainer = DataParallelTrainer(lambda: [n in sys.modules for n in names], run_config=config, backend_config=backend)
    return trainer.fit().return_value


def ripen(zygote, modules):
    zygote.preload_in_successor(modules)
    zygote._successor.socket.recv(1, socket.MSG_PEEK)  # waits until it is ready


def test_one_zygote_serves_all_runs_until_its_successor_is_ready(tmp_path):
    assert fit_and_list_imports(tmp_path, "a") == [False, True]
    zygote = shared_zygote()
    pid = zygote.pid
    assert fit_and_list_imports(tmp_path, "b") == [False, True]
    assert shared_zygote().pid == pid
    ripen(zygote, ("this",))
    assert fit_and_list_imports(tmp_path, "c") == [True, True]
    assert fit_and_list_imports(tmp_path, "d") == [True, True]
    assert shared_zygote() is zygote


def test_a_successor_imports_modules_that_are_requested_later(tmp_path):
    fit_and_list_imports(tmp_path, "a")
    ripen(shared_zygote(), ("antigravity_is_not_there",))

    class Backend(BackendConfig):
        preload = ("this",)

    assert fit_and_list_imports(tmp_path, "b", Backend()) == [True, True]


def test_the_zygote_serves_on_when_its_successor_dies(tmp_path):
    fit_and_list_imports(tmp_path, "a")
    zygote = shared_zygote()
    ripen(zygote, ("this",))
    (heir,) = psutil.Process(zygote.pid).children()
    heir.kill()
    psutil.wait_procs([heir], timeout=240)
    assert fit_and_list_imports(tmp_path, "b") == [False, True]


def test_a_module_that_cannot_be_imported_ahead_is_left_to_the_worker(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('broken on purpose')")
    monkeypatch.syspath_prepend(tmp_path)

    class Backend(BackendConfig):
        preload = ("broken_module", "no_such_module_anywhere")

    assert fit_and_list_imports(tmp_path, "a", Backend()) == [False, True]


def test_a_fit_inside_a_worker_works_and_a_worker_starts_no_zygote_before_that(tmp_path):
    """A train function may train something small of its own; its processes go with it."""

    def function():
        import paceline.train.torch

        checks = [launchers._shared is None, paceline.train.torch.__name__ in sys.modules]
        inner = DataParallelTrainer(lambda: 42, run_config=RunConfig(name="inner", storage_path=tmp_path))
        return [*checks, inner.fit().return_value]

    result = DataParallelTrainer(function, run_config=RunConfig(name="outer", storage_path=tmp_path)).fit()
    assert result.return_value == [True, True, 42]
    assert train.Result.from_path(tmp_path / "inner").return_value == 42


@pytest.mark.parametrize("is_imported", [True, False])
def test_a_successor_preloads_what_a_worker_has_imported_and_its_workers_are_not_idle(
    tmp_path, monkeypatch, is_imported
):
    monkeypatch.setattr(engine, "_PRELOAD_AFTER_S", 0.0)

    class Backend(BackendConfig):
        preload_later = ("this",)

    def function():
        if is_imported:
            importlib.import_module("this")

    config = RunConfig(storage_path=tmp_path, name="a")
    DataParallelTrainer(function, run_config=config, backend_config=Backend()).fit()
    zygote = shared_zygote()
    assert (zygote._successor is not None) == is_imported
    if is_imported:
        ripen(zygote, ())
    policies = DataParallelTrainer(
        lambda: ["this" in sys.modules, os.sched_getscheduler(0), gc.isenabled()],
        run_config=RunConfig(storage_path=tmp_path, name="b"),
    )
    assert policies.fit().return_value == [is_imported, os.SCHED_OTHER, True]


def test_the_imports_of_a_successor_take_no_time_from_a_busy_core(tmp_path, monkeypatch):
    """Here a thread of this process is the busy worker, on the only core that the zygote may use."""
    (tmp_path / "computes.py").write_text("import time\nwhile time.thread_time() < 0.2: pass")
    monkeypatch.syspath_prepend(tmp_path)
    fit_and_list_imports(tmp_path, "a")
    zygote, core = shared_zygote(), {min(os.sched_getaffinity(0))}
    os.sched_setaffinity(zygote.pid, core)
    used = []

    def keep_busy():
        os.sched_setaffinity(0, core)  # Of this thread.
        zygote.preload_in_successor(("computes",))
        while not (heirs := psutil.Process(zygote.pid).children()):
            pass
        clock, began = (~heirs[0].pid << 3) | 2, time.thread_time()
        while time.thread_time() < began + 0.5:
            pass
        used.append(time.clock_gettime(clock))

    thread = threading.Thread(target=keep_busy)
    thread.start()
    thread.join()
    assert used[0] < 0.05
    ripen(zygote, ())


def test_the_zygote_and_its_successor_have_one_thread_each(tmp_path):
    """A fork copies one thread only: a lock that another one held would stay locked in the worker for ever."""
    from paceline.train.torch import TorchConfig

    fit_and_list_imports(tmp_path, "a", TorchConfig())
    zygote = shared_zygote()
    ripen(zygote, TorchConfig.preload_later)
    process = psutil.Process(zygote.pid)
    assert [process.num_threads(), *(heir.num_threads() for heir in process.children())] == [1, 1]


LEAVES = """
import os, subprocess, sys
from paceline.train import DataParallelTrainer, RunConfig

def function():
    waits = "import select; select.select([], [], [], 60)"
    child = subprocess.Popen([sys.executable, "-c", waits], start_new_session=True)
    return child.pid

print(DataParallelTrainer(function, run_config=RunConfig(storage_path="runs")).fit().return_value)
"""


def test_processes_a_worker_left_in_a_new_session_end_with_the_driver(run_script):
    """Its worker has returned by then, and its group is gone: nobody but the zygote knows of it."""
    ended = run_script(LEAVES)
    assert ended.returncode == 0, ended.stderr
    pid = int(ended.stdout)
    assert still_running([psutil.Process(pid)] if psutil.pid_exists(pid) else [], within_s=60) == []


def test_a_driver_that_does_not_read_answers_does_not_block_the_zygote():
    """Driver and zygote would wait for each other once both sockets are full, as with hundreds of workers."""
    silent, zygote_end = socket.socketpair()
    with silent, zygote_end, open("/dev/null", "r+b") as null:
        zygote_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        shared_zygote()._channel.send({"do": "attach"}, (zygote_end.fileno(),))
        order = launchers.make_start_order("module_that_does_not_exist")
        fds = (null.fileno(),) * 3
        for token in range(40):
            Channel(silent).send({"do": "fork", "token": token, "env": {}, **order}, fds)
        launcher = launchers.ZygoteLauncher(())
        for token in range(20):  # One after the other: meanwhile the answers to the other channel pile up.
            launcher.launch(token, {}, fds, "module_that_does_not_exist")
            exits = []
            while not exits:
                assert select.select(launcher.watched_fds(), [], [], 60)[0], "the zygote does not answer"
                exits = launcher.take_exits()
            assert [each.token for each in exits] == [token]
        silent.settimeout(60)
        reader, answers = FrameReader(), []
        while len(answers) < 80:
            answers += [json.loads(frame) for frame in reader.feed(silent.recv(1 << 16))]
        assert {answer.get("exited") for answer in answers} >= set(range(40))
        launcher.close()


@pytest.mark.slow
def test_four_hundred_workers_start_and_end(tmp_path):
    config = RunConfig(storage_path=tmp_path, name="many")
    assert DataParallelTrainer(lambda: 1, scaling_config=ScalingConfig(400), run_config=config).fit().return_value == 1
