"""The actor on a node: it starts and ends all workers that a run has there, and carries their messages.

The workers are the same as in the local engine, with sockets to this actor instead of the driver, and one zygote. The
actor outlives them, and the next attempt, or the next run, forks from what is already imported. One stream carries all
output to the driver, where each of its items costs far more than a message: plain reports wait a moment for others to
go with. For a run in a store, whose logs exist only on this node, log output goes the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hmac
import math
import os
import platform
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

import paceline
from paceline._core import settings, system
from paceline._engine import messages
from paceline._engine.base import WorkerGroupSpec, WorkerSpec
from paceline._engine.local.engine import LocalEngine
from paceline._engine.local.launchers import detach_zygotes, prewarm
from paceline._engine.messages import encode_message
from paceline._engine.ray import storage_probe
from paceline._engine.ray.code_bundle import ActorConfig
from paceline._engine.ray.connection import import_ray
from paceline._engine.ray.node_code import HeldDirectory, apply_config, apply_environment, find_missing_trees
from paceline._engine.ray.ray_in_worker import has_ray_references
from paceline._engine.ray.worker_files import WorkerLogTail

_POLL_S = 0.5
"""How often to check for pids of workers and new log output."""


class ActorPlacement(msgspec.Struct, frozen=True):
    node_id: str
    address: str
    host: str
    pid: int
    num_cores: int
    gpus: tuple[str, ...] = ()
    """The devices that Ray assigned to a worker's bundle, by Ray's names; an agent has none."""
    version: str = ""
    """Of Paceline on that node; `python` likewise."""
    python: str = ""
    missing_files: str = ""
    """Why files that it needs were not sent; empty if none are missing."""


class NodeOutput(msgspec.Struct, frozen=True, array_like=True):
    """What the workers of a node have sent since the last one, in order for each worker."""

    messages: tuple[bytes, ...] = ()
    pids: tuple[tuple[int, int], ...] = ()
    """Ranks, and the processes that they have turned out to be."""
    logs: tuple[tuple[int, bytes], ...] = ()
    """Printed by ranks before these messages; only if the driver cannot read their log files."""
    stopped_attempt: int | None = None
    """The attempt that has ended: all its processes on this node are gone."""


encode_output = msgspec.msgpack.Encoder().encode
decode_output = msgspec.msgpack.Decoder(NodeOutput).decode


@dataclasses.dataclass
class _NodeAttempt:
    """The workers of one attempt on this node."""

    group: WorkerGroupSpec
    hold_s: float
    """How long plain reports may wait for others."""
    log_tails: dict[int, WorkerLogTail]
    """The logs that only this node can read, by rank."""
    due_at: float = math.inf
    """When to send the messages that wait."""
    poll_at: float = 0.0
    sent_pids: dict[int, int] = dataclasses.field(default_factory=dict)

    def can_wait(self, message: messages.FromWorker) -> bool:
        """Whether nobody waits for this message."""
        if type(message) is messages.UsageReported:
            return True
        if type(message) is not messages.Reported or message.checkpoint is not None or message.validation is not None:
            return False
        return not self.group.workers[0].begin.waits_in_reports


class NodeAgent:
    def __init__(self, token: str, preload: tuple[str, ...], config: bytes = b"{}") -> None:
        self._token = token
        self._config = msgspec.json.decode(config, type=ActorConfig)
        apply_environment(self._config)
        self._calls: deque[Callable[[], None]] = deque()
        self._engine = LocalEngine()
        self._attempt: _NodeAttempt | None = None
        self._unsent: list[bytes] = []
        self._held_spool: HeldDirectory | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outputs: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        """For the stream; None ends it."""
        self._is_adopted = asyncio.Event()
        self._setup_lock = asyncio.Lock()
        self._missing_files = ""
        self._thread: threading.Thread | None = None
        detach_zygotes()
        prewarm(*preload)

    async def set_up(self, token: str, files: list[Any] | None = None) -> ActorPlacement:
        """Return the placement. `files` refers to the code bundle, fetched only if this node lacks part of it."""
        self._check_token(token)
        async with self._setup_lock:
            if self._thread is None:
                self._loop = asyncio.get_running_loop()
                missing = await asyncio.to_thread(find_missing_trees, self._config)
                if missing and self._config.manifest.size_problem:
                    self._missing_files, missing = self._config.manifest.size_problem, ()
                data = await files[0] if missing and files else b""
                await asyncio.to_thread(apply_config, self._config, missing, data)
                self._thread = threading.Thread(target=self._serve, name="paceline-agent", daemon=True)
                self._thread.start()
        runtime = import_ray().get_runtime_context()
        return ActorPlacement(
            node_id=runtime.get_node_id(),
            address=import_ray().util.get_node_ip_address(),
            host=socket.gethostname(),
            pid=os.getpid(),
            num_cores=system.num_cores(),
            version=paceline.__version__,
            python=platform.python_version(),
            missing_files=self._missing_files,
        )

    async def park(self, token: str, next_token: str) -> None:
        """Leave the run. The next run takes this agent over with `next_token`; if none does in time, it ends."""
        self._check_token(token)
        has_workers: Future[bool] = Future()
        self._post_call(lambda: has_workers.set_result(self._attempt is not None))
        if await asyncio.wrap_future(has_workers):
            raise RuntimeError("its workers have not ended")
        self._token = next_token
        self._is_adopted.clear()
        self._outputs.put_nowait(None)
        if self._held_spool is not None:
            self._held_spool.release()
            self._held_spool = None

    async def adopt(self, token: str, new_token: str) -> None:
        """Belong to another run of the same process from now on."""
        self._check_token(token)
        self._token = new_token
        self._outputs = asyncio.Queue()
        self._is_adopted.set()

    async def end_if_idle(self, token: str, after_s: float) -> None:
        """End this actor unless a run takes it over in time."""
        if hmac.compare_digest(token, self._token):
            try:
                async with asyncio.timeout(after_s):
                    await self._is_adopted.wait()
            except TimeoutError:
                import_ray().actor.exit_actor()

    async def check_storage(self, token: str, question: storage_probe.ProbeQuestion) -> str:
        """Return what is wrong with the run's storage as seen from this node; empty if nothing is."""
        self._check_token(token)
        node_id = import_ray().get_runtime_context().get_node_id()
        return await asyncio.to_thread(storage_probe.answer_probe, question, node_id)

    async def start(self, token: str, group: WorkerGroupSpec, job: bytes, hold_s: float) -> None:
        """Start the workers of a group that are on this node. Their job travels separately, once for all nodes.

        `hold_s`: how long plain reports may wait for others before they are sent.
        """
        self._check_token(token)
        needs_ray = has_ray_references(job)
        log_tails: dict[int, WorkerLogTail] = {}
        workers = []
        for spec in group.workers:
            begin, log = spec.begin, spec.log
            if begin.store is not None:
                spool = self._hold_spool(Path(begin.run_path))
                log = spool / log.relative_to(begin.run_path)
                begin = replace(begin, run_path=str(spool))
                log_tails[begin.rank] = WorkerLogTail(log)
            if address := spec.env.get("RAY_ADDRESS"):
                connection = messages.RayConnectionSpec(address, self._config.namespace, needs_ray)
                begin = replace(begin, ray_connection=connection)
            workers.append(WorkerSpec(begin, log, spec.env))
        attempt = _NodeAttempt(dataclasses.replace(group, workers=tuple(workers), job=job), hold_s, log_tails)

        def start_group() -> None:
            self._attempt = attempt
            self._engine.start(attempt.group)

        self._post_call(start_group)

    async def send(self, token: str, batch: list[tuple[list[int], bytes]]) -> None:
        """Pass on messages, each to some of the ranks."""
        self._check_token(token)
        decoded = [(ranks, messages.decode_to_worker(message)) for ranks, message in batch]

        def send_all() -> None:
            for ranks, message in decoded:
                for rank in ranks:
                    self._engine.send(rank, message)

        self._post_call(send_all)

    async def stop(self, token: str, kill: bool) -> None:
        self._check_token(token)
        self._post_call(lambda: self._engine.stop(kill=kill))

    async def ping(self, token: str) -> None:
        """Show the driver that this agent can be reached."""
        self._check_token(token)

    async def signal(self, token: str, rank: int, signum: int) -> None:
        """Send a signal to the process of a rank, for tests."""
        self._check_token(token)
        pid = self._engine.pid(rank)
        if pid > 0:
            with contextlib.suppress(ProcessLookupError):  # It ended by itself a moment before.
                os.kill(pid, signum)

    async def condition(self, token: str, rank: int) -> system.ProcessStatus | None:
        self._check_token(token)
        return self._engine.condition(rank)

    async def stream_output(self, token: str) -> AsyncIterator[bytes]:
        """Stream each `NodeOutput`, encoded, for as long as this actor lives."""
        self._check_token(token)
        outputs = self._outputs
        while isinstance(output := await outputs.get(), bytes):
            yield output
        if output is not None:
            raise output

    def _check_token(self, token: str) -> None:
        if not hmac.compare_digest(token, self._token):
            raise PermissionError("this agent belongs to another run")

    def _hold_spool(self, run_path: Path) -> Path:
        """Return this node's own directory for files of a run in a store; it is removed after the last actor."""
        node_id = import_ray().get_runtime_context().get_node_id()
        path = settings.spool_root() / run_path.parent.name / f"{run_path.name}.{node_id[:12]}"
        if self._held_spool is None or self._held_spool.path != path:
            self._held_spool = HeldDirectory(path)
        return path

    # The thread that owns the engine

    def _post_call(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._engine.wake()

    def _serve(self) -> None:
        try:
            while True:
                output = self._engine.wait(self._compute_timeout())
                while self._calls:
                    self._calls.popleft()()
                if self._attempt is not None:
                    self._forward(self._attempt, output)
        except Exception as error:  # noqa: BLE001 - ends the stream, so the driver sees it
            self._enqueue_output(error)

    def _compute_timeout(self) -> float | None:
        if self._attempt is None:
            return None
        return max(0.0, min(self._attempt.due_at, self._attempt.poll_at) - time.monotonic())

    def _forward(self, attempt: _NodeAttempt, output: list[messages.FromWorker | messages.WorkersStopped]) -> None:
        """Send the output now, or let it wait for more. Messages stay in order: an urgent one takes all along."""
        now = time.monotonic()
        stopped = None
        for message in output:
            if isinstance(message, messages.WorkersStopped):
                stopped = message.attempt
            else:
                self._unsent.append(encode_message(message))
                attempt.due_at = min(attempt.due_at, now + attempt.hold_s if attempt.can_wait(message) else now)
        is_due = stopped is not None or now >= attempt.due_at
        if is_due or now >= attempt.poll_at:
            attempt.poll_at = now + _POLL_S
            self._send_output(attempt, stopped, is_due=is_due)
        if stopped is not None:
            self._attempt = None

    def _send_output(self, attempt: _NodeAttempt, stopped: int | None, *, is_due: bool) -> None:
        """Send what there is: messages if they are due, or if there is anything else to send."""
        logs = _read_logs(attempt)
        # Send all of the logs before messages: a traceback must be in the log before the failure is known.
        while logs and is_due and (more := _read_logs(attempt)):
            self._enqueue_output(encode_output(NodeOutput(logs=logs)))
            logs = more
        pids = {spec.begin.rank: self._engine.pid(spec.begin.rank) for spec in attempt.group.workers}
        new = tuple((rank, pid) for rank, pid in pids.items() if pid and attempt.sent_pids.get(rank) != pid)
        if is_due or logs or new:
            attempt.sent_pids.update(new)
            payloads, self._unsent, attempt.due_at = tuple(self._unsent), [], math.inf
            self._enqueue_output(encode_output(NodeOutput(payloads, new, logs, stopped)))

    def _enqueue_output(self, output: bytes | Exception) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(lambda: self._outputs.put_nowait(output))


def _read_logs(attempt: _NodeAttempt) -> tuple[tuple[int, bytes], ...]:
    """Read the next piece of each log that has one."""
    pieces = ((rank, tail.read_next()) for rank, tail in attempt.log_tails.items())
    return tuple((rank, piece) for rank, piece in pieces if piece)
