"""The actor around one worker: it holds the resources on a node, and runs the worker in a separate process.

The worker is the same as in the local engine, with a socket to this actor instead of the driver. The actor outlives it,
and the next attempt forks from what is already imported. All worker output is forwarded in order through one stream
that the driver reads. For a run in a store, whose logs exist only on this node, log output goes the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hmac
import os
import platform
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
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
"""How often to check for a worker's pid and new log output."""


class ActorPlacement(msgspec.Struct, frozen=True):
    node_id: str
    address: str
    host: str
    pid: int
    num_cores: int
    gpus: tuple[str, ...] = ()
    """The devices that Ray assigned to it, by Ray's names."""
    version: str = ""
    """Of Paceline on that node; `python` likewise."""
    python: str = ""
    missing_files: str = ""
    """Why files that it needs were not sent; empty if none are missing."""


class WorkerOutput(msgspec.Struct, frozen=True):
    """A worker's output since the last one, in order."""

    messages: tuple[bytes, ...] = ()
    pid: int = 0
    """Of its process, once it is known."""
    stopped_attempt: int | None = None
    """The attempt that has ended: its process is gone."""
    log_data: bytes = b""
    """Printed by the worker before these messages; only if the driver cannot read the log file."""


class WorkerActor:
    def __init__(self, token: str, preload: tuple[str, ...], config: bytes = b"{}") -> None:
        self._token = token
        self._config = msgspec.json.decode(config, type=ActorConfig)
        apply_environment(self._config)
        self._calls: deque[Callable[[], None]] = deque()
        self._engine = LocalEngine()
        self._rank = -1
        self._sent_pid = 0
        self._log_tail: WorkerLogTail | None = None
        """The worker's log, if only this node can read it."""
        self._held_spool: HeldDirectory | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outputs: asyncio.Queue[WorkerOutput | Exception] = asyncio.Queue()
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
                self._thread = threading.Thread(target=self._serve, name="paceline-shell", daemon=True)
                self._thread.start()
        runtime = import_ray().get_runtime_context()
        return ActorPlacement(
            node_id=runtime.get_node_id(),
            address=import_ray().util.get_node_ip_address(),
            host=socket.gethostname(),
            pid=os.getpid(),
            num_cores=system.num_cores(),
            gpus=tuple(map(str, runtime.get_accelerator_ids().get("GPU", ()))),
            version=paceline.__version__,
            python=platform.python_version(),
            missing_files=self._missing_files,
        )

    async def check_storage(self, token: str, question: storage_probe.ProbeQuestion) -> str:
        """Return what is wrong with the run's storage as seen from this node; empty if nothing is."""
        self._check_token(token)
        node_id = import_ray().get_runtime_context().get_node_id()
        return await asyncio.to_thread(storage_probe.answer_probe, question, node_id)

    async def start(self, token: str, group: WorkerGroupSpec, job: bytes) -> None:
        """Start the worker of a group of one. Its job travels separately, once for all workers."""
        self._check_token(token)
        (spec,) = group.workers
        begin, log = spec.begin, spec.log
        log_tail: WorkerLogTail | None = None
        if begin.store is not None:
            spool = self._hold_spool(Path(begin.run_path))
            log = spool / log.relative_to(begin.run_path)
            begin = replace(begin, run_path=str(spool))
            log_tail = WorkerLogTail(log)
        if address := spec.env.get("RAY_ADDRESS"):
            begin = replace(
                begin,
                ray_connection=messages.RayConnectionSpec(address, self._config.namespace, has_ray_references(job)),
            )
        group = dataclasses.replace(group, workers=(WorkerSpec(begin, log, spec.env),), job=job)

        def start_group() -> None:
            self._log_tail, self._rank, self._sent_pid = log_tail, begin.rank, 0
            self._engine.start(group)

        self._post_call(start_group)

    async def send(self, token: str, message: bytes) -> None:
        self._check_token(token)
        decoded = messages.decode_to_worker(message)
        self._post_call(lambda: self._engine.send(self._rank, decoded))

    async def stop(self, token: str, kill: bool) -> None:
        self._check_token(token)
        self._post_call(lambda: self._engine.stop(kill=kill))

    async def signal(self, token: str, signum: int) -> None:
        """Send a signal to the worker's process, for tests."""
        self._check_token(token)
        pid = self._engine.pid(self._rank)
        if pid > 0:
            with contextlib.suppress(ProcessLookupError):  # It ended by itself a moment before.
                os.kill(pid, signum)

    async def condition(self, token: str) -> system.ProcessStatus | None:
        self._check_token(token)
        return self._engine.condition(self._rank)

    async def stream_output(self, token: str) -> AsyncIterator[WorkerOutput]:
        """Stream all output, for as long as this actor lives."""
        self._check_token(token)
        while isinstance(output := await self._outputs.get(), WorkerOutput):
            yield output
        raise output

    def _check_token(self, token: str) -> None:
        if not hmac.compare_digest(token, self._token):
            raise PermissionError("this worker belongs to another run")

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
                output = self._engine.wait(None if self._rank < 0 else _POLL_S)
                while self._calls:
                    self._calls.popleft()()
                self._forward(output)
        except Exception as error:  # noqa: BLE001 - ends the stream, so the driver sees it
            self._enqueue_output(error)

    def _forward(self, output: list[messages.FromWorker | messages.WorkersStopped]) -> None:
        pid = self._engine.pid(self._rank) if self._rank >= 0 else 0
        stopped = next((each.attempt for each in output if isinstance(each, messages.WorkersStopped)), None)
        log_tail = self._log_tail.read_next() if self._log_tail is not None else b""
        # Send the log before the last messages: a traceback must be in the log before the failure is known.
        while self._log_tail is not None and output and (more := self._log_tail.read_next()):
            self._enqueue_output(WorkerOutput(log_data=log_tail))
            log_tail = more
        if not output and not log_tail and (not pid or pid == self._sent_pid):
            return
        self._sent_pid = pid or self._sent_pid
        payloads = tuple(encode_message(each) for each in output if not isinstance(each, messages.WorkersStopped))
        self._enqueue_output(WorkerOutput(payloads, pid, stopped, log_tail))

    def _enqueue_output(self, output: WorkerOutput | Exception) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._outputs.put_nowait, output)
