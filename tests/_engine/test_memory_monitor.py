"""A worker killed by the kernel for lack of memory is reported as such, with the memory it held."""

import contextlib
import os
import re
import subprocess
from concurrent.futures.process import BrokenProcessPool
from types import SimpleNamespace

import pytest

from paceline._control.events import WorkerFailed
from paceline._core import system
from paceline._engine.local.engine import MemoryMonitor
from paceline._worker.main import _make_failure
from paceline.data import DataError
from paceline.train import DataParallelTrainer, RunConfig, WorkerGroupError
from processes import inside, small_memory, use_up_memory
from written_runs import read_events


@pytest.fixture
def small_group():
    with contextlib.ExitStack() as stack:
        try:
            path = stack.enter_context(inside(stack.enter_context(small_memory(1 << 30))))
        except OSError as problem:
            pytest.skip(f"no control group can be made here ({problem}): the kernel's own kill was not tried")
        yield path


def test_reports_an_oom_kill_with_the_memory_held(small_group, tmp_path):
    def function():
        use_up_memory(small_group)

    with pytest.raises(WorkerGroupError) as caught:
        DataParallelTrainer(function, run_config=RunConfig(storage_path=tmp_path)).fit()
    assert "out of memory: killed by the kernel" in str(caught.value)


class Hungry:
    """A dataset for torch, whose process takes more memory than there is."""

    def __init__(self, group):
        self.group = group

    def __len__(self):
        return 1

    def __getitem__(self, index):
        use_up_memory(self.group)


@pytest.mark.slow
def test_reports_an_oom_kill_of_a_process_of_a_data_loader(small_group, tmp_path):
    torch = pytest.importorskip("torch")

    def function():
        (small_group / "cgroup.procs").write_text(str(os.getpid()))
        next(iter(torch.utils.data.DataLoader(Hungry(small_group), num_workers=1)))

    with pytest.raises(WorkerGroupError) as caught:
        DataParallelTrainer(function, run_config=RunConfig(name="run", storage_path=tmp_path)).fit()
    sentence = r"out of memory: the kernel killed a process that this worker started: RuntimeError: DataLoader worker"
    assert re.search(sentence, str(caught.value))
    assert caught.value.worker_failures[0] is not None
    assert read_events(tmp_path / "run", WorkerFailed)[0].failure.kind == "memory"


KILLED = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
wrapped = ValueError("the batch could not be loaded")
wrapped.__cause__ = RuntimeError("DataLoader worker (pid(s) 7, 8) exited unexpectedly")


@pytest.mark.parametrize(
    ("error", "num_kills", "kind"),
    [
        (KILLED, 1, "memory"),
        (KILLED, 0, "user"),
        (wrapped, 1, "memory"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Segmentation fault. "), 1, "user"),
        (BrokenProcessPool("A process in the process pool was terminated abruptly while the future was"), 1, "memory"),
        (subprocess.CalledProcessError(-9, ["sort"]), 1, "memory"),
        (subprocess.CalledProcessError(-11, ["sort"]), 1, "user"),
        (DataError("its data process died 4 times; the last one was killed by the kernel, out of memory"), 0, "memory"),
    ],
)
def test_a_killed_child_is_out_of_memory_only_if_the_kernel_counted_a_kill(monkeypatch, error, num_kills, kind):
    context = SimpleNamespace(begin=SimpleNamespace(rank=0), num_oom_kills=3, secondary_error=None)
    monkeypatch.setattr(system, "num_oom_kills", lambda: 3 + num_kills)
    assert _make_failure(context, error).kind == kind


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
    kills[0] = 5
    vitals.clear()
    assert vitals.explain_oom_kill(0) is None, "it was a child of a worker of the attempt before"
