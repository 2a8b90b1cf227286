"""Inside a worker: the backend's wrapper, through which a worker learns of its faults, and the moments it passes.

The wrapper travels with the job. Unpickled, it is in the worker before the user's function is; around that function
it puts watched twins in the place of the worker's context and uploader.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paceline._engine.messages import CheckpointRecord, Reported, Staged, decode_from_worker
from paceline._storage.state import Snapshot
from paceline._worker import context as worker_context
from paceline._worker.context import Context
from paceline._worker.upload import Directory, InPlace, Source, Uploader
from paceline.testing.faults.acts import strike_here
from paceline.testing.faults.files import faulty_files
from paceline.testing.faults.moments import DRIVERS_PHASES, Watch
from paceline.testing.faults.values import Capacity, Faults, Hang, Kill, OutOfMemory, Preempt
from paceline.train.backend import BackendConfig

_COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "monitored_barrier",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
)


class FaultyBackend(BackendConfig):
    """A backend around another one."""

    def __init__(self, inner: BackendConfig, faults: Faults, driver: int, fired: Path) -> None:
        self._inner = inner
        self._faults = faults
        self._driver = driver
        self._fired = fired
        # On the instance: they are those of the backend inside, not of a class.
        self.__dict__.update(
            preload=(*inner.preload, __name__), preload_later=inner.preload_later, start_method=inner.start_method
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        context = worker_context.current()
        if context is not None:
            moments = self._moments(context)
            moments.await_own_end()
            moments.passed("import", context.begin.attempt)

    def check(self, num_workers: int, use_gpu: bool) -> None:
        self._inner.check(num_workers, use_gpu)

    @contextlib.contextmanager
    def around(self, context: Context) -> Iterator[None]:
        moments = self._moments(context)
        attempt = context.begin.attempt
        with contextlib.ExitStack() as stack:
            stack.enter_context(_watched(context, moments, self._faults))
            with self._inner.around(context):
                if not moments.num("rendezvous"):
                    moments.passed("rendezvous", attempt)
                moments.in_function = True
                stack.enter_context(_watched_frameworks(moments, shards=bool(context.begin.shards)))
                moments.passed("step", context.num_reports + 1)
                yield
                moments.in_function = False
            moments.passed("exit", attempt)

    def _moments(self, context: Context) -> Moments:
        return Moments(self._faults, context.begin.rank, context.begin.attempt, self._driver, self._fired)


class Moments:
    """The moments that this worker passes, and the faults that it meets there."""

    def __init__(self, faults: Faults, rank: int, attempt: int, driver: int, fired: Path) -> None:
        self.fired = faults.memory(fired)
        self.in_function = False
        self._rank = rank
        self._attempt = attempt
        self._driver = driver
        self._num: dict[str, int] = {}
        timed = {i: f for i, f in enumerate(faults.all) if isinstance(f, Kill | Hang | Preempt | OutOfMemory)}
        own = {i: f for i, f in timed.items() if f.rank == rank}
        self._watch = Watch({i: f for i, f in own.items() if f.at.phase not in DRIVERS_PHASES}, self.fired)
        at_spawn = {i: f.at for i, f in own.items() if isinstance(f, Kill) and f.at.phase == "spawn"}
        self._spawn = [i for i, at in at_spawn.items() if at.number in (None, attempt)]

    def num(self, phase: str) -> int:
        """How often a phase was passed."""
        return self._num.get(phase, 0)

    def passed(self, phase: str, number: int | None = None) -> None:
        """Be in a phase; without a number it is counted. What is due there strikes now."""
        self._num[phase] = self.num(phase) + 1
        for fault in self._watch.due(phase, number if number is not None else self._num[phase], self._rank):
            assert not isinstance(fault, Capacity)
            strike_here(fault, self._driver)

    def await_own_end(self) -> None:
        """A kill that the driver sends as soon as it knows of this process must not find it in a later phase."""
        if any(self.fired.free(index) for index in self._spawn):
            signal.pause()


class _WatchedContext(Context):
    moments: Moments

    def join(self, data: bytes) -> bytes:
        if self.moments.in_function:
            self.moments.passed("collective")
        else:
            self.moments.passed("rendezvous", self.begin.attempt)
        return super().join(data)

    def latest_checkpoint(self) -> CheckpointRecord | None:
        record = super().latest_checkpoint()
        if (record or self.begin.initial) and self.num_reports == self.begin.first_seq:
            self.moments.passed("restore", self.begin.attempt)
        return record

    def report(self, *args: Any, **kwargs: Any) -> None:
        super().report(*args, **kwargs)
        self.moments.passed("step", self.num_reports + 1)


class _WatchedLink:
    """Stands before the line to the driver."""

    def __init__(self, inner: Any, moments: Moments) -> None:
        self._inner = inner
        self._moments = moments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send_payload(self, payload: bytes) -> None:
        message = decode_from_worker(payload)
        if isinstance(message, Reported):
            self._moments.passed("report", message.seq)
        self._inner.send_payload(payload)


class _WatchedUploader(Uploader):
    moments: Moments
    number: int
    """Of the report whose files are being staged."""
    snapped: Callable[[], int]

    def _held(self, source: Source) -> Directory | InPlace | Snapshot:
        held = super()._held(source)
        if isinstance(held, Snapshot):
            self.moments.passed("snapshot", self.snapped())
        return held

    def _stage(self, seq: int, name: str, held: Directory | InPlace | Snapshot) -> Staged:
        self.number = seq
        return super()._stage(seq, name, held)

    def acted(self, act: str, path: Path) -> None:
        self.moments.passed("upload", self.number)


@contextlib.contextmanager
def _watched(context: Context, moments: Moments, faults: Faults) -> Iterator[None]:
    """Let a context, its line and its uploader tell of the moments they pass.

    Their class is exchanged, and given back for a function that runs in the driver's own process.
    """
    uploader = context.uploader
    before = (type(context), context._link, type(uploader), uploader._files)
    root = context.layout.root
    context.__class__ = _WatchedContext
    assert isinstance(context, _WatchedContext)
    context.moments = moments
    context._link = _WatchedLink(before[1], moments)  # type: ignore[assignment]
    uploader.__class__ = _WatchedUploader
    assert isinstance(uploader, _WatchedUploader)
    uploader.moments = moments
    uploader.number = 0
    uploader.snapped = lambda: context.num_reports
    uploader._files = faulty_files(before[3], faults, moments.fired, root, uploader.acted, time.sleep)
    try:
        yield
    finally:
        context.__class__, context._link, uploader.__class__, uploader._files = before  # type: ignore[assignment]


@contextlib.contextmanager
def _watched_frameworks(moments: Moments, *, shards: bool) -> Iterator[None]:
    """Let datasets, and the collectives and data loaders of torch, tell of themselves, where they are in use."""
    with contextlib.ExitStack() as stack:
        distributed = sys.modules.get("torch.distributed")
        for name in _COLLECTIVES if distributed is not None else ():
            if hasattr(distributed, name):
                stack.enter_context(_before(distributed, name, lambda *_: moments.passed("collective")))
        loader = sys.modules.get("torch.utils.data.dataloader")
        if loader is not None:
            iterator = loader._BaseDataLoaderIter
            stack.enter_context(_before(iterator, "__next__", lambda *_: moments.passed("data")))
        if shards:
            stack.enter_context(_batches_watched(moments))
        parallel = sys.modules.get("torch.nn.parallel.distributed")
        if parallel is not None:
            stack.enter_context(_gradients_watched(parallel.DistributedDataParallel, moments))
        yield


@contextlib.contextmanager
def _batches_watched(moments: Moments) -> Iterator[None]:
    """The batches of a dataset's part tell of themselves."""
    from paceline.data.epochs import Epochs

    inner = Epochs._batches

    def told(epochs: Epochs, *args: Any) -> Iterator[Any]:
        batches = inner(epochs, *args)
        while True:
            moments.passed("data")
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch

    Epochs._batches = told  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Epochs._batches = inner  # type: ignore[method-assign]


@contextlib.contextmanager
def _before(owner: Any, name: str, tell: Callable[..., None]) -> Iterator[None]:
    inner = getattr(owner, name)

    def told(*args: Any, **kwargs: Any) -> Any:
        tell(*args)
        return inner(*args, **kwargs)

    setattr(owner, name, told)
    try:
        yield
    finally:
        setattr(owner, name, inner)


@contextlib.contextmanager
def _gradients_watched(ddp: Any, moments: Moments) -> Iterator[None]:
    """DDP reduces gradients in C++, and has all of them when that of the first parameter is there."""
    inner = ddp.__init__

    def made(model: Any, *args: Any, **kwargs: Any) -> None:
        inner(model, *args, **kwargs)
        first = next((parameter for parameter in model.parameters() if parameter.requires_grad), None)
        if first is not None:
            first.register_hook(lambda gradient: moments.passed("collective"))

    ddp.__init__ = made
    try:
        yield
    finally:
        ddp.__init__ = inner
