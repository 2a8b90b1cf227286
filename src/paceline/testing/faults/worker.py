"""Inside a worker: the backend wrapper that delivers faults to it, the moments it passes, and what a fault does to it.

The wrapper is pickled with the job, so it is in the worker before the user's function is. Around that function it
replaces the worker's context and uploader with watched versions.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn

import psutil

from paceline._core import system
from paceline._core.checkpoint_records import CheckpointRecord, StagedFiles
from paceline._engine.messages import Reported, decode_from_worker
from paceline._storage.state import StateSnapshot
from paceline._worker import context as worker_context
from paceline._worker.context import WorkerContext
from paceline._worker.upload import CheckpointSource, FrozenSource, Uploader
from paceline.testing.faults import values
from paceline.testing.faults.files import faulty_files
from paceline.testing.faults.moments import DRIVER_PHASES, FaultSchedule
from paceline.testing.faults.values import Faults, TimedFault, select_faults
from paceline.train.backend import BackendConfig

_MAX_MEMORY_TAKEN = 1 << 30
"""The most memory a test may take; a control group with more left is shared with too many others."""


def strike_this_process(
    fault: values.KillFault | values.HangFault | values.PreemptFault | values.OutOfMemoryFault, driver: int
) -> None:
    """Apply a fault to this worker, now or after its delay. Returns only if the fault leaves it running."""
    if fault.at.delay_s and not isinstance(
        fault, values.HangFault
    ):  # The thread that came here must be the one that hangs.
        start_timer(fault.at.delay_s, lambda: _strike(fault, driver))
    else:
        _strike(fault, driver)


def preempt_this_process(deadline_s: float) -> threading.Timer:
    """Send this process SIGTERM, as a cluster does before it takes a machine away, and SIGKILL at the deadline."""
    timer = start_timer(deadline_s, lambda: os.kill(os.getpid(), signal.SIGKILL))
    os.kill(os.getpid(), signal.SIGTERM)
    return timer


def _strike(
    fault: values.KillFault | values.HangFault | values.PreemptFault | values.OutOfMemoryFault, driver: int
) -> None:
    match fault:
        case values.KillFault(with_driver=with_driver):
            if with_driver:
                os.kill(driver, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        case values.HangFault(how="stopped"):
            os.kill(os.getpid(), signal.SIGSTOP)
        case values.HangFault(how="gil"):
            # Called through PyDLL, C code keeps the interpreter's lock: no other thread runs.
            ctypes.PyDLL(None).pause()
        case values.HangFault():
            while True:
                time.sleep(3600)
        case values.PreemptFault(deadline_s=deadline_s):
            preempt_this_process(deadline_s)
        case values.OutOfMemoryFault():
            _exhaust_memory()


def _exhaust_memory() -> NoReturn:
    memory = system.usable_memory()
    # All of a machine's memory is never taken, only that of a control group.
    if memory.total_bytes < psutil.virtual_memory().total and memory.free_bytes <= _MAX_MEMORY_TAKEN:
        Path("/proc/self/oom_score_adj").write_text("1000")  # Kill this process, and no other of the group.
        held = []
        while True:
            held.append(b"\1" * (16 << 20))
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process is still running")


def start_timer(delay_s: float, act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(delay_s, act)
    timer.daemon = True
    timer.start()
    return timer


_COLLECTIVES = """
    all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single barrier broadcast
    broadcast_object_list gather monitored_barrier reduce reduce_scatter reduce_scatter_tensor scatter
"""


class FaultyBackend(BackendConfig):
    """A backend that wraps another one."""

    def __init__(self, inner: BackendConfig, faults: Faults, driver: int, strike_log_path: Path) -> None:
        self._inner = inner
        self._faults = faults
        self._driver = driver
        self._strike_log_path = strike_log_path
        # On the instance: they belong to the wrapped backend, not to a class.
        self.__dict__.update(
            preload=(*inner.preload, __name__), preload_later=inner.preload_later, start_method=inner.start_method
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        context = worker_context.current()
        if context is not None:
            phases = self._make_phases(context)
            phases.wait_for_kill()
            phases.enter("import", context.begin.attempt)

    def check(self, num_workers: int, use_gpu: bool) -> None:
        self._inner.check(num_workers, use_gpu)

    @contextlib.contextmanager
    def around(self, context: WorkerContext) -> Iterator[None]:
        phases = self._make_phases(context)
        attempt = context.begin.attempt
        with contextlib.ExitStack() as stack:
            stack.enter_context(_watch_context(context, phases, self._faults))
            with self._inner.around(context):
                if not phases.counts["rendezvous"]:
                    phases.enter("rendezvous", attempt)
                phases.in_function = True
                stack.enter_context(_watch_frameworks(phases, shards=bool(context.begin.shards)))
                phases.enter("step", context.num_reports + 1)
                yield
                phases.in_function = False
            phases.enter("exit", attempt)

    def _make_phases(self, context: WorkerContext) -> WorkerPhases:
        begin = context.begin
        return WorkerPhases(self._faults, begin.rank, begin.attempt, self._driver, self._strike_log_path)


class WorkerPhases:
    """The moments that this worker passes, and the faults that it meets there."""

    def __init__(self, faults: Faults, rank: int, attempt: int, driver: int, strike_log_path: Path) -> None:
        self.strike_log = faults.memory(strike_log_path)
        self.in_function = False
        self._rank = rank
        self._driver = driver
        self.counts: Counter[str] = Counter()
        of_this_rank = {i: f for i, f in select_faults(faults, TimedFault).items() if f.rank == rank}
        due_here = {i: f for i, f in of_this_rank.items() if f.at.phase not in DRIVER_PHASES}
        self._schedule = FaultSchedule(due_here, self.strike_log)
        at_spawn = {
            i: f.at for i, f in of_this_rank.items() if isinstance(f, values.KillFault) and f.at.phase == "spawn"
        }
        self._spawn_kills = [i for i, at in at_spawn.items() if at.number in (None, attempt)]

    def enter(self, phase: str, number: int | None = None) -> None:
        """Enter a phase; without a number, entries are counted. Faults due there strike now."""
        self.counts[phase] += 1
        for fault in self._schedule.take_due(phase, number if number is not None else self.counts[phase], self._rank):
            assert not isinstance(fault, values.CapacityFault)
            strike_this_process(fault, self._driver)

    def wait_for_kill(self) -> None:
        """Wait for a kill that the driver sends once it knows this process, so that it cannot hit a later phase."""
        if any(self.strike_log.is_unused(index) for index in self._spawn_kills):
            signal.pause()


class _WatchedContext(WorkerContext):
    phases: WorkerPhases

    def join(self, data: bytes, call: str = "") -> bytes:
        if self.phases.in_function:
            self.phases.enter("collective")
        else:
            self.phases.enter("rendezvous", self.begin.attempt)
        return super().join(data, call)

    def latest_checkpoint(self) -> CheckpointRecord | None:
        record = super().latest_checkpoint()
        if (record or self.begin.initial) and self.num_reports == self.begin.first_seq:
            self.phases.enter("restore", self.begin.attempt)
        return record

    def report(self, *args: Any, **kwargs: Any) -> None:
        super().report(*args, **kwargs)
        self.phases.enter("step", self.num_reports + 1)


class _WatchedLink:
    """Wraps the connection to the driver."""

    def __init__(self, inner: Any, phases: WorkerPhases) -> None:
        self._inner = inner
        self._phases = phases

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send_payload(self, payload: bytes) -> None:
        message = decode_from_worker(payload)
        if isinstance(message, Reported):
            self._phases.enter("report", message.seq)
        self._inner.send_payload(payload)


class _WatchedUploader(Uploader):
    phases: WorkerPhases
    number: int
    """The number of the report whose files are being staged."""
    snapshot_number: Callable[[], int]

    def _freeze_source(self, source: CheckpointSource, *args: Any, **kwargs: Any) -> FrozenSource:
        frozen = super()._freeze_source(source, *args, **kwargs)
        if isinstance(frozen, StateSnapshot):
            self.phases.enter("snapshot", self.snapshot_number())
        return frozen

    def _stage(self, seq: int, name: str, source: FrozenSource) -> StagedFiles:
        self.number = seq
        return super()._stage(seq, name, source)

    def on_act(self, act: str, path: Path) -> None:
        self.phases.enter("upload", self.number)


@contextlib.contextmanager
def _watch_context(context: WorkerContext, phases: WorkerPhases, faults: Faults) -> Iterator[None]:
    """Make a context, its connection and its uploader announce the moments they pass, by swapping their classes."""
    uploader = context.uploader
    before = (type(context), context._link, type(uploader), uploader._files)
    root = context.layout.root
    context.__class__ = _WatchedContext
    assert isinstance(context, _WatchedContext)
    context.phases = phases
    context._link = _WatchedLink(before[1], phases)  # type: ignore[assignment]
    uploader.__class__ = _WatchedUploader
    assert isinstance(uploader, _WatchedUploader)
    uploader.phases = phases
    uploader.number = 0
    uploader.snapshot_number = lambda: context.num_reports
    uploader._files = faulty_files(before[3], faults, phases.strike_log, root, uploader.on_act, time.sleep)
    try:
        yield
    finally:
        context.__class__, context._link, uploader.__class__, uploader._files = before  # type: ignore[assignment]


@contextlib.contextmanager
def _watch_frameworks(phases: WorkerPhases, *, shards: bool) -> Iterator[None]:
    """Make datasets, and torch's collectives and data loaders, announce moments, if they are in use."""
    with contextlib.ExitStack() as stack:
        distributed = sys.modules.get("torch.distributed")
        for name in _COLLECTIVES.split() if distributed is not None else ():
            if hasattr(distributed, name):
                stack.enter_context(_enter_before(distributed, name, phases, "collective"))
        loader = sys.modules.get("torch.utils.data.dataloader")
        if loader is not None:
            stack.enter_context(_enter_before(loader._BaseDataLoaderIter, "__next__", phases, "data"))
        if shards:
            stack.enter_context(_watch_batches(phases))
        parallel = sys.modules.get("torch.nn.parallel.distributed")
        if parallel is not None:
            stack.enter_context(_watch_gradients(parallel.DistributedDataParallel, phases))
        yield


def _watch_batches(phases: WorkerPhases) -> AbstractContextManager[None]:
    from paceline.data.order.epochs import EpochIterator

    inner = EpochIterator._batches

    def watch_each_batch(epochs: EpochIterator, *args: Any) -> Iterator[Any]:
        batches = inner(epochs, *args)
        while True:
            phases.enter("data")
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch

    return _replace_attribute(EpochIterator, "_batches", watch_each_batch)


def _enter_before(owner: Any, name: str, phases: WorkerPhases, phase: str) -> AbstractContextManager[None]:
    inner = getattr(owner, name)

    def enter_and_call(*args: Any, **kwargs: Any) -> Any:
        phases.enter(phase)
        return inner(*args, **kwargs)

    return _replace_attribute(owner, name, enter_and_call)


@contextlib.contextmanager
def _replace_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _watch_gradients(ddp: Any, phases: WorkerPhases) -> AbstractContextManager[None]:
    """Watch DDP, which reduces gradients in C++ and has all of them once that of the first parameter is there."""
    inner = ddp.__init__

    def init_and_hook(model: Any, *args: Any, **kwargs: Any) -> None:
        inner(model, *args, **kwargs)
        first = next((parameter for parameter in model.parameters() if parameter.requires_grad), None)
        if first is not None:
            first.register_hook(lambda gradient: phases.enter("collective"))

    return _replace_attribute(ddp, "__init__", init_and_hook)
