"""A worker killed by the kernel for lack of memory is reported as such, with the memory it held."""

import contextlib
import os
import re

import pytest

from paceline._control.recovery import load_history
from paceline._core import system
from paceline._engine.local.engine import MemoryMonitor
from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_store import DiskRunStore
from paceline.train import DataParallelTrainer, RunConfig, WorkerGroupError
from processes import small_memory


@pytest.fixture
def small_group():
    with contextlib.ExitStack() as stack:
        try:
            path = stack.enter_context(small_memory())
        except OSError as problem:
            pytest.skip(f"no control group can be made here ({problem}): the kernel's own kill was not tried")
        yield path


@pytest.mark.alone  # The kernel counts such kills for the whole machine: another test's SIGKILL would be taken for one.
def test_reports_an_oom_kill_with_the_memory_held(small_group, tmp_path):
    def function():
        (small_group / "cgroup.procs").write_text(str(os.getpid()))
        blocks = []
        while True:
            blocks.append(os.urandom(8 << 20))

    with pytest.raises(WorkerGroupError) as caught:
        DataParallelTrainer(function, run_config=RunConfig(storage_path=tmp_path)).fit()
    assert "out of memory: killed by the kernel" in str(caught.value)


def test_a_memory_error_in_the_function_has_the_same_kind(tmp_path):
    def function():
        raise MemoryError("numpy: unable to allocate 1 TiB")

    with pytest.raises(WorkerGroupError, match="MemoryError"):
        DataParallelTrainer(function, run_config=RunConfig(name="run", storage_path=tmp_path)).fit()
    run, _ = load_history(DiskRunStore(LocalFiles(), RunLayout(tmp_path / "run")))
    assert run.phase.failures[0].kind == "memory"


def test_another_kill_is_not_reported_as_out_of_memory(monkeypatch):
    kills = [3]
    monkeypatch.setattr(system, "num_oom_kills", lambda: kills[0])
    vitals = MemoryMonitor()
    vitals.sample([0], lambda rank: os.getpid())
    assert vitals.explain_oom_kill(0) is None
    kills[0] = 4
    message = vitals.explain_oom_kill(0)
    assert re.fullmatch(r"out of memory: killed by the kernel; it held \d+\.\d+ GiB.*", message)
    assert vitals.explain_oom_kill(1) is None, "one kill is one death"
