"""A worker that the kernel killed for want of memory is told as such, with what it held."""

import contextlib
import os
import re

import pytest

from paceline._control.recovery import load_history
from paceline._core import system
from paceline._engine.local.memory_monitor import MemoryMonitor
from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import DiskRunStore
from paceline.train import DataParallelTrainer, RunConfig, WorkerGroupError
from processes import small_memory


@pytest.fixture
def small_group():
    with contextlib.ExitStack() as made:
        try:
            path = made.enter_context(small_memory())
        except OSError as problem:
            pytest.skip(f"no control group can be made here ({problem}): the kernel's own kill was not tried")
        yield path


@pytest.mark.alone  # The kernel counts such kills for the whole machine: another test's SIGKILL would be taken for one.
def test_a_worker_killed_by_the_kernel_for_want_of_memory_is_told_with_what_it_held(small_group, tmp_path):
    def function():
        (small_group / "cgroup.procs").write_text(str(os.getpid()))
        held = []
        while True:
            held.append(os.urandom(8 << 20))

    with pytest.raises(WorkerGroupError) as caught:
        DataParallelTrainer(function, run_config=RunConfig(storage_path=tmp_path)).fit()
    assert "out of memory: killed by the kernel" in str(caught.value)


def test_a_memory_error_in_the_function_is_of_the_same_class(tmp_path):
    def function():
        raise MemoryError("numpy: unable to allocate 1 TiB")

    with pytest.raises(WorkerGroupError, match="MemoryError"):
        DataParallelTrainer(function, run_config=RunConfig(name="run", storage_path=tmp_path)).fit()
    run, _ = load_history(DiskRunStore(LocalFiles(), RunLayout(tmp_path / "run")))
    assert run.phase.failures[0].kind == "memory"


def test_another_kill_is_not_called_want_of_memory(monkeypatch):
    kills = [3]
    monkeypatch.setattr(system, "num_oom_kills", lambda: kills[0])
    vitals = MemoryMonitor()
    vitals.sample([0], lambda rank: os.getpid())
    assert vitals.explain_oom_kill(0) is None
    kills[0] = 4
    told = vitals.explain_oom_kill(0)
    assert re.fullmatch(r"out of memory: killed by the kernel; it held \d+\.\d+ GiB.*", told)
    assert vitals.explain_oom_kill(1) is None, "one kill is one death"
