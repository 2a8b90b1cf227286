"""The actor that serves the datasets of a run: it runs plans, has blocks cut, and tells each worker where its rows are.
The rows themselves never come here.

The driver creates it, and it ends with the driver. Its state is the passes in progress: if its process is lost, it
restarts without any, and the next attempt of the workers starts new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec

from paceline._core.errors import DataError
from paceline._engine.ray.code_bundle import ActorConfig, CodeBundle
from paceline._engine.ray.connection import gcs_address, import_ray
from paceline._engine.ray.node_code import apply_config, find_missing_trees
from paceline.data.context import DataContext
from paceline.data.exec.failure import capture_failure
from paceline.data.exec.pipeline import find_dataset
from paceline.data.exec.ray.block_stream import PlacedBlock
from paceline.data.exec.ray.serving.row_files import PassFiles
from paceline.data.exec.ray.serving.row_protocol import OpenRowsRequest, PiecesReply, cut_task, format_address
from paceline.data.exec.ray.serving.served_dataset import LocalBlock, Say, ServedDataset, make_pieces
from paceline.data.exec.ray.serving.shared_pass import (
    PATIENCE_S,
    SHARED_PATIENCE_S,
    PassReader,
    SharedPass,
    WorkerPiece,
)
from paceline.data.exec.ray.shipping import ShippedValue, add_module_paths
from paceline.data.exec.stats import StreamStats, format_bytes
from paceline.data.order.row_ownership import BlockSpan, OwnershipTracker
from paceline.data.planning.plan import PlanNode


@dataclass(eq=False)
class _PassMember:
    name: str
    running: _RunningPass
    reader: PassReader
    news: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class _RunningPass:
    request: OpenRowsRequest
    state: SharedPass
    files: PassFiles
    members: set[_PassMember] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when something changes that decides whether to continue."""
    failed: PiecesReply | None = None
    moving: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while rows are moved to files."""
    task: asyncio.Task[None] | None = None

    def notify_members(self) -> None:
        for member in self.members:
            member.news.set()


class RowService:
    """The actor. A worker calls `open`, then `take` and `mark_passed` repeatedly, then `leave`."""

    def __init__(self, token: str, plans: ShippedValue, context: DataContext, config: bytes, files: Any) -> None:
        self._token = token
        _install_code(msgspec.msgpack.decode(config, type=ActorConfig), files)
        self._datasets = {name: ServedDataset(plan) for name, plan in plans.load_value().items()}
        self._limit = _budget(context) // 2
        # The other half is for blocks computed ahead of the cutting.
        limits = replace(context.execution_options.resource_limits, object_store_memory=float(self._limit))
        options = replace(context.execution_options, resource_limits=limits)
        DataContext._current = replace(context, execution_options=options)
        self._running: list[_RunningPass] = []
        self._members: dict[int, _PassMember] = {}
        self._numbers = count(secrets.randbits(48))  # never repeats a number from before a restart of this process
        self._attempt = 0
        self._peak = 0
        self._moved_bytes: dict[str, int] = {}
        """Bytes moved to files, by dataset."""
        self._line_queue: asyncio.Queue[str] = asyncio.Queue()
        self._queued_lines: set[str] = set()
        self._cut = import_ray().remote(cut_task)

    # Called by workers

    async def fetch_fact(self, token: str, attempt: int, name: str, fact: str) -> tuple[bytes, bytes]:
        """Return a pickled fact about a dataset; on failure, the error and the exception."""
        self._check(token)
        self._enter_attempt(attempt)
        try:
            dataset = find_dataset(self._datasets, name)
            if fact == "stats":
                return cloudpickle.dumps(dataset.record.to_stats(self._peak, self._limit)), b""
            return await dataset.fetch_fact(fact), b""
        except Exception as error:  # noqa: BLE001
            return b"", msgspec.msgpack.encode(capture_failure(error))

    async def open(self, token: str, encoded: bytes) -> int:
        """Return the number under which the worker takes rows."""
        self._check(token)
        request = msgspec.msgpack.decode(encoded, type=OpenRowsRequest)
        self._enter_attempt(request.attempt)
        for number, member in self._members.items():
            if member.name == request.name:
                return number
        running = self._find_pass(request) or self._start_pass(request)
        number = next(self._numbers)
        member = self._members[number] = _PassMember(request.name, running, running.state.join(request.rank))
        running.members.add(member)
        running.changed.set()
        return number

    async def take(self, token: str, number: int) -> tuple[bytes, list[Any]]:
        """Wait for new pieces for a worker; return them with references to the rows."""
        self._check(token)
        member = self._members.get(number)
        if member is None:
            lost = capture_failure(DataError("the service has restarted, or this worker has left it"))
            return msgspec.msgpack.encode(PiecesReply(failure=lost)), []
        running, reader = member.running, member.reader
        began = time.monotonic()
        reader.is_asking = True
        running.changed.set()
        while not (pieces := await self._take_pieces(running, reader)):
            is_over = running.state.ended or running.failed is not None
            if number not in self._members or (is_over and not reader.waiting):
                break
            member.news.clear()
            await member.news.wait()
        reader.is_asking = False
        if not pieces and running.failed is not None:
            return msgspec.msgpack.encode(running.failed), []
        dataset = find_dataset(self._datasets, running.request.dataset)
        dataset.record.consumer_waited_s += time.monotonic() - began if len(reader.sent_bytes) == len(pieces) else 0
        headers = tuple((piece.unit, piece.offset, piece.num_rows, piece.is_whole) for piece, _ in pieces)
        has_ended = running.state.ended and not reader.waiting
        return msgspec.msgpack.encode(PiecesReply(headers, has_ended)), [ref for _, ref in pieces]

    async def mark_passed(self, token: str, number: int, num: int) -> None:
        """A worker has passed its first `num` pieces."""
        self._check(token)
        if (member := self._members.get(number)) is not None:
            member.running.state.mark_passed(member.reader, num)
            self._discard_unneeded(member.running)
            member.news.set()
            self._wake_passes()

    async def leave(self, token: str, number: int) -> None:
        self._check(token)
        self._remove_member(number)

    async def next_line(self, token: str) -> str:
        """Wait for the next line to show to the user. Called by the driver."""
        self._check(token)
        return await self._line_queue.get()

    async def all_stats(self, token: str) -> bytes:
        """The statistics of all datasets. Called by the driver."""
        self._check(token)
        stats = {name: each.record.to_stats(self._peak, self._limit) for name, each in self._datasets.items()}
        # The list of skipped rows may be long, and the driver does not need it.
        return msgspec.msgpack.encode({name: replace(each, skipped=()) for name, each in stats.items()})

    async def flight_stats(self, token: str) -> tuple[int, int, int, int]:
        """Bytes in flight, their peak, the number of passes in progress, and bytes moved to files: for tests."""
        self._check(token)
        return self._in_flight, self._peak, len(self._running), sum(self._moved_bytes.values())

    def _check(self, token: str) -> None:
        if not hmac.compare_digest(token, self._token):
            raise PermissionError("these datasets belong to another run")

    def _enter_attempt(self, attempt: int) -> None:
        """Drop the members and facts of an earlier attempt: its workers are gone, and files may have changed since."""
        if attempt > self._attempt:
            self._attempt = attempt
            for number in list(self._members):
                self._remove_member(number)
            for dataset in self._datasets.values():
                dataset.facts.clear()

    # Passes

    def _find_pass(self, request: OpenRowsRequest) -> _RunningPass | None:
        for running in self._running:
            is_same = running.request.pass_key == request.pass_key
            if is_same and not running.failed and running.state.can_join(request.rank):
                return running
        return None

    def _start_pass(self, request: OpenRowsRequest) -> _RunningPass:
        # If a pass over the same rows is already running without this worker, the new pass waits for nobody else.
        is_late = any(running.request.pass_key == request.pass_key for running in self._running)
        ranks = [request.rank] if is_late else range(request.division.world)
        patience_s = SHARED_PATIENCE_S if request.division.num_parts == 1 else PATIENCE_S
        state = SharedPass(ranks, patience_s, self._limit // request.division.world)
        running = _RunningPass(request, state, PassFiles(DataContext.get_current().spill_path))
        self._running.append(running)
        running.task = asyncio.get_running_loop().create_task(self._run_to_end(running))
        return running

    def _remove_member(self, number: int) -> None:
        member = self._members.pop(number, None)
        if member is not None:
            member.running.members.discard(member)
            member.running.state.leave(member.reader, time.monotonic())
            self._discard_unneeded(member.running)
            member.news.set()
            self._wake_passes()

    def _queue_line(self, loop: asyncio.AbstractEventLoop, line: str) -> None:
        """Thread-safe. Each line is queued once."""
        if line not in self._queued_lines:
            self._queued_lines.add(line)
            loop.call_soon_threadsafe(self._line_queue.put_nowait, line)

    def _wake_passes(self) -> None:
        for running in self._running:
            running.changed.set()

    @property
    def _in_flight(self) -> int:
        return sum(running.state.in_flight for running in self._running)

    @property
    def _room(self) -> int:
        return self._limit - self._in_flight

    async def _run_to_end(self, running: _RunningPass) -> None:
        try:
            with ThreadPoolExecutor(1, "paceline-rows") as thread:
                await self._run_pass(running, partial(asyncio.get_running_loop().run_in_executor, thread))
            while not running.state.closed:
                await self._wait_for_change(running)
        finally:
            async with running.moving:
                running.files.close()
            self._running.remove(running)
            self._wake_passes()

    async def _run_pass(self, running: _RunningPass, in_thread: Any) -> None:
        """Go through the rows once, as long as workers want them."""
        request, state = running.request, running.state
        ownership, uncut = OwnershipTracker(request.division), deque[PlacedBlock | LocalBlock]()
        blocks: Iterator[PlacedBlock | LocalBlock] | None = None
        try:
            dataset, start = find_dataset(self._datasets, request.dataset), request.division.start
            pipeline = await dataset.pipeline(start.epoch)
            blocks = dataset.stream_blocks(
                pipeline, start.unit, start.offset, partial(self._queue_line, asyncio.get_running_loop())
            )
            while await self._wait_until_wanted(running):
                placed = await in_thread(next, blocks, None)
                if placed is None:
                    self._cut_blocks(running, uncut, ownership.finish())
                    state.ended = True
                    running.notify_members()
                elif placed.num_rows:
                    state.add_block(placed.num_bytes)
                    self._note_peak()
                    uncut.append(placed)
                    self._cut_blocks(running, uncut, ownership.add_block(placed.num_rows))
        except Exception as error:  # noqa: BLE001
            self._cut_blocks(running, uncut, ownership.finish(broken=True))
            self._fail(running, error)
        finally:
            if blocks is not None:
                await in_thread(blocks.close)  # type: ignore[attr-defined]

    async def _wait_until_wanted(self, running: _RunningPass) -> bool:
        """Wait until the next block is wanted; False if none will be."""
        while not (running.state.closed or running.state.ended or running.failed):
            if running.state.wants_more(self._room, time.monotonic()):
                await self._make_room(running)
                return not running.failed
            await self._wait_for_change(running)
        return False

    async def _take_pieces(self, running: _RunningPass, reader: PassReader) -> list[tuple[WorkerPiece, Any]]:
        """Take what a worker may have now."""
        if running.state.needs_file(reader):
            await self._make_room(running)
        pieces = running.state.take_pieces(reader, self._room, running.files.load)
        self._note_peak()
        return pieces

    async def _make_room(self, running: _RunningPass) -> None:
        """If there is no room, move rows that wait for workers that are behind to files."""
        async with running.moving:
            state = running.state
            # Half of the room, so that the rows of many blocks are moved at a time.
            chosen = state.choose_rows_to_move(self._in_flight - self._limit // 2) if self._room <= 0 else []
            if not chosen or state.closed or running.failed:
                return
            try:
                places, hosts = await asyncio.to_thread(running.files.store, chosen)
            except Exception as error:  # noqa: BLE001
                self._fail(running, error)
                return
            for rows, place in places:
                state.mark_moved(rows, place)
            self._discard_unneeded(running)
            self._report_moved(running.request.dataset, sum(rows.num_bytes for rows in chosen), hosts)

    def _report_moved(self, dataset: str, num_bytes: int, hosts: Sequence[str]) -> None:
        """Say the first time that rows of a dataset are in files."""
        if dataset not in self._moved_bytes:
            self._line_queue.put_nowait(
                f"data: dataset {dataset!r}: one worker reads far ahead of another. Of the rows that wait for the one "
                f"behind, at most {format_bytes(self._limit)} stay in memory; {format_bytes(num_bytes)} are now in "
                f"files in {' and '.join(sorted(hosts))}, and more will follow (make all workers read the same number "
                "of rows, or raise ExecutionOptions.resource_limits.object_store_memory, now "
                f"{format_bytes(2 * self._limit)})"
            )
        self._moved_bytes[dataset] = self._moved_bytes.get(dataset, 0) + num_bytes

    def _discard_unneeded(self, running: _RunningPass) -> None:
        places = running.state.unneeded_places
        running.state.unneeded_places = []
        running.files.discard(places)

    def _fail(self, running: _RunningPass, error: Exception) -> None:
        running.failed = PiecesReply(failure=capture_failure(error))
        running.changed.set()
        running.notify_members()

    def _note_peak(self) -> None:
        self._peak = max(self._peak, self._in_flight)

    async def _wait_for_change(self, running: _RunningPass) -> None:
        """Wait for anything that may change the next decision."""
        after_s = running.state.check_patience(time.monotonic())
        if not running.state.closed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(running.changed.wait(), after_s)
        running.changed.clear()

    def _cut_blocks(
        self, running: _RunningPass, uncut: deque[PlacedBlock | LocalBlock], spans: Sequence[BlockSpan]
    ) -> None:
        """Cut the blocks whose rows have known owners, and notify the waiting workers."""
        for span in spans:
            placed = uncut.popleft()
            running.state.add_pieces(make_pieces(running.request.division, span, placed, self._cut))
        running.notify_members()


def _install_code(config: ActorConfig, files: bytes | list[Any]) -> None:
    """Install the driver's modules and directory here, and its modules in all processes that work for us."""
    missing = find_missing_trees(config)
    apply_config(config, missing, files if isinstance(files, bytes) else import_ray().get(files[0]) if missing else b"")
    unpacked_to = Path(tempfile.gettempdir(), f"paceline-{os.getuid()}", config.manifest.digest)
    # On a node that lacks them, the workers have unpacked them.
    roots = [(str(unpacked_to / str(number)), tree.root) for number, tree in enumerate(config.manifest.trees)]
    add_module_paths(tuple(path for paths in roots for path in paths))


def _budget(context: DataContext) -> int:
    """Bytes in flight: the configured limit, or a quarter of the cluster's object store memory."""
    limit = context.execution_options.resource_limits.object_store_memory
    if limit is not None:
        return int(limit)
    return int(import_ray().cluster_resources().get("object_store_memory", 0.0)) // 4


# Called by the driver

_SMALL = 64 << 10
"""Arguments up to this many bytes are sent to the actor inline."""


@contextlib.contextmanager
def serve_with_stats(
    plans: Mapping[str, PlanNode], context: DataContext, code_bundle: CodeBundle, say: Say
) -> Iterator[tuple[str, ServiceStatsPoller]]:
    """Serve datasets from an actor that lives as long as this context; yield the address for workers, and statistics.

    `say` gets the lines to show to the user, in a separate thread.
    """
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options: dict[str, Any] = {
        "name": f"paceline-rows-{secrets.token_hex(8)}",
        "num_cpus": 0,
        "max_concurrency": 100_000,
        "scheduling_strategy": here,
    }
    if code_bundle.runtime_env is not None:
        options["runtime_env"] = dict(code_bundle.runtime_env)
    token = secrets.token_hex(16)
    shipped_plans, config = ShippedValue.from_value(dict(plans)), msgspec.msgpack.encode(code_bundle.config)
    is_small = not shipped_plans.refs and len(shipped_plans.pickled) + len(config) + len(code_bundle.data) < _SMALL
    # Ray restarts an actor from its constructor arguments; those in the object store may be lost by then.
    options["max_restarts"] = -1 if is_small else 0
    files = code_bundle.data if is_small else [ray.put(code_bundle.data)]
    actor = ray.remote(RowService).options(**options).remote(token, shipped_plans, context, config, files)
    listener = threading.Thread(
        target=_forward_lines, args=(actor, token, say), name="paceline-rows-lines", daemon=True
    )
    listener.start()
    try:
        address = format_address(gcs_address(), ray.get_runtime_context().namespace, options["name"], token)
        yield address, ServiceStatsPoller(actor, token)
    finally:
        ray.kill(actor)
        listener.join()


def _forward_lines(actor: Any, token: str, say: Say) -> None:
    ray = import_ray()
    try:
        while True:
            say(ray.get(actor.next_line.remote(token)))
    except ray.exceptions.RayError:
        return  # the actor has ended with the run, or restarts and has nothing new to report


_decode = msgspec.msgpack.Decoder(dict[str, StreamStats]).decode


class ServiceStatsPoller:
    """Each call returns the last known statistics and requests new ones."""

    def __init__(self, actor: Any, token: str) -> None:
        self._actor = actor
        self._token = token
        self._pending: Any = None
        self._last: dict[str, StreamStats] = {}

    def __call__(self) -> Mapping[str, StreamStats]:
        ray = import_ray()
        try:
            if self._pending is not None and ray.wait([self._pending], timeout=0)[0]:
                answered, self._pending = self._pending, None
                self._last = _decode(ray.get(answered))
            if self._pending is None:
                self._pending = self._actor.all_stats.remote(self._token)
        except ray.exceptions.RayError:
            self._pending = None  # The actor is lost or restarts; the workers get the error.
        return self._last
