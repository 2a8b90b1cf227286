"""The data processes of a service: starts them, gives them work, and detects their deaths."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Hashable, Mapping, Sequence

import cloudpickle

from paceline._core import system
from paceline._core.frames import display_name
from paceline._engine.local import launchers
from paceline._engine.local.devices import this_machine
from paceline._engine.messages import DataProcessSampled
from paceline.data.context import DataContext
from paceline.data.exec import messages as m
from paceline.data.exec import schedule_state as s
from paceline.data.exec.arena import ArenaPool
from paceline.data.exec.failure import capture_failure
from paceline.data.exec.message_socket import ServiceSocket
from paceline.data.exec.schedule import Schedule
from paceline.data.exec.streams import RunningStream

POLL_S = 0.1
IDLE_S = 15.0
"""A process without work for this long is retired."""
MODULE = "paceline.data.exec.process"
PRELOAD = (
    "pyarrow",
    "pyarrow.parquet",
    "pyarrow.compute",
    "pandas",
    MODULE,
    "paceline.data.exec.service_client",
    "paceline.data.iterator",
    "paceline.data.sources.parquet",
)
"""Modules that data processes, and the workers that take their rows, need. Arrow imports pandas, where it is installed,
to convert its first array, and each process would have its own 30 MB of it."""

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class DataProcessHandle(ServiceSocket):
    def __init__(self, end: socket.socket, selector: selectors.BaseSelector, number: int, pool: Hashable) -> None:
        super().__init__(end, m.FromProcess, selector)
        self.number = number
        self.pool = pool
        self.jobs: set[str] = set()
        """The jobs it has."""
        self.assignment: s.AssignWork | None = None
        self.inspection: ProcessInspection | None = None
        self.asked = 0
        """The number of the last request for its stacks during this work; 0 if there was none."""
        self.idle_since = time.monotonic()

    def disconnect(self) -> None:
        super().disconnect()
        if self.inspection is not None:
            self.inspection.disconnect()


class ProcessInspection(ServiceSocket):
    """The connection to a process's inspection thread."""

    def __init__(self, end: socket.socket, selector: selectors.BaseSelector, process: DataProcessHandle) -> None:
        super().__init__(end, m.ProcessSampled, selector)
        self.process = process


class DataProcessSupervisor:
    def __init__(
        self,
        selector: selectors.BaseSelector,
        context: DataContext,
        block_bytes: int,
        schedule: Schedule,
        arenas: ArenaPool,
        running: Mapping[int, RunningStream],
    ) -> None:
        """`block_bytes`: larger blocks are split before they are announced."""
        self._selector = selector
        self._block_bytes = block_bytes
        self._schedule = schedule
        self._arenas = arenas
        self._running = running
        self._launcher: launchers.Launcher | None = launchers.choose_launcher(PRELOAD)
        self._watched_fds: set[int] = set()
        self._slots: dict[int, tuple[Hashable, int]] = {}
        self._processes: dict[int, DataProcessHandle] = {}
        self.samples: dict[int, DataProcessSampled] = {}
        """The last answer of each process that is at work."""
        self._num_oom_kills = system.num_oom_kills()
        self._context = system.create_anonymous_file("paceline-data")
        with open(self._context, "wb", closefd=False) as file:
            cloudpickle.dump(context, file)

    @property
    def processes(self) -> list[DataProcessHandle]:
        return list(self._processes.values())

    @property
    def needs_polling(self) -> bool:
        """Whether process exits must be polled because no descriptor reports them."""
        return bool(self._processes) and len(self._watched_fds) == 0

    @property
    def timeout_s(self) -> float | None:
        """When to look at the processes again, even if nothing happens."""
        return POLL_S if self.needs_polling else IDLE_S / 2 if self._processes else None

    def pids(self) -> list[int]:
        launcher, numbers = self._launcher, list(self._processes)
        return [pid for number in numbers if launcher is not None and (pid := launcher.pid(number))]

    # Messages and commands

    def serve(self, process: DataProcessHandle, mask: int) -> None:
        for message in process.exchange(mask):
            self._handle_message(process, message)

    def _handle_message(self, process: DataProcessHandle, message: m.FromProcess) -> None:
        schedule, number = self._schedule, process.number
        schedule.on_blocks_released(number, message.released)
        match message:
            case m.ProcessReady():
                if (fd := process.take_descriptor()) is not None:
                    process.inspection = ProcessInspection(socket.socket(fileno=fd), self._selector, process)
                schedule.on_process_ready(number)
            case m.RoomRequested(work=work, nbytes=nbytes):
                schedule.on_room_requested(number, work, nbytes)
            case m.BlockWritten(work=work, offset=offset, layout=layout):
                self._arenas.layouts[schedule.lent_block(work)] = layout
                schedule.on_block_written(number, work, layout.num_rows, offset, layout.nbytes)
            case m.InputRequested(work=work):
                schedule.on_input_requested(number, work)
            case m.WorkEnded(work=work, failure=failure):
                self._record_work(process, message)
                (schedule.on_work_done if failure is None else schedule.on_work_failed)(number, work)

    def _record_work(self, process: DataProcessHandle, ended: m.WorkEnded) -> None:
        work, process.assignment = process.assignment, None
        process.asked = 0
        self.samples.pop(process.number, None)
        process.idle_since = time.monotonic()
        if work is None or work.stream not in self._running:
            return
        running = self._running[work.stream]
        running.meter(work.unit, work.stage).add(ended.meter)
        running.record.skipped += ended.skipped
        if ended.failure is not None:
            running.failures[work.unit] = ended.failure

    def execute(self, command: s.ProcessCommand) -> None:
        if isinstance(command, s.LaunchProcess):
            self._launch(command.process, command.pool)
            return
        if (process := self._processes.get(command.process)) is None:
            return  # it has died meanwhile
        match command:
            case s.RetireProcess():
                process.disconnect()  # it exits when it sees that its socket is closed
            case s.AssignWork():
                self._assign(process, command)
            case s.LendBlock(work=work, block=block, nbytes=nbytes):
                arena = self._arenas.lend_arena(block, nbytes)
                process.post(m.WriteTo(work, arena.number, nbytes), arena)
            case s.FeedBlock(work=work, block=block):
                arena = self._arenas.blocks[block]
                process.post(m.TakeInput(work, block, arena.number, self._arenas.layouts[block]), arena)
            case s.EndFeed(work=work):
                process.post(m.EndInput(work))
            case s.DropWork(work=work):
                process.post(m.AbandonWork(work))

    def _assign(self, process: DataProcessHandle, work: s.AssignWork) -> None:
        running = self._running[work.stream]
        unit, jobs = running.pipeline.tasks[work.unit].unit, running.jobs_of(work.unit)
        try:
            pickled = cloudpickle.dumps(unit) if work.stage == 0 else b""
        except Exception as error:  # noqa: BLE001
            running.failures[work.unit] = capture_failure(error, unit.name)
            self._schedule.on_work_failed(process.number, work.work)
            return
        process.assignment, job = work, jobs[work.stage]
        if job.name not in process.jobs:
            process.jobs.add(job.name)
            process.post(m.LoadJob(job.name, job.pickled))
        skip = work.skip if work.stage == len(jobs) - 1 else None
        of_unit = unit.name, work.unit, pickled
        process.post(m.StartWork(work.work, job.name, work.stage, skip, *of_unit, self._block_bytes))

    def check_idle(self, now: float) -> bool:
        """Notify the schedule of processes without work; return whether there are any."""
        has_idle = False
        for process in self._processes.values():
            if process.assignment is None and now - process.idle_since > IDLE_S:
                has_idle = True
                process.idle_since = now
                self._schedule.on_process_idle(process.number)
        return has_idle

    # Stacks

    def request_samples(self, number: int) -> None:
        """Ask the processes that are at work what they do. One that has not answered the last request is recorded."""
        for process in self._processes.values():
            if process.assignment is None or process.inspection is None:
                continue
            last = self.samples.get(process.number)
            if last is None or last.number < process.asked:
                self._record_sample(process, None)
            process.asked = number
            process.inspection.post(m.SampleProcess(number))

    def serve_inspection(self, inspection: ProcessInspection, mask: int) -> None:
        for message in inspection.exchange(mask):
            self._record_sample(inspection.process, message)

    def _record_sample(self, process: DataProcessHandle, answer: m.ProcessSampled | None) -> None:
        work, launcher = process.assignment, self._launcher
        if work is None or work.stream not in self._running:
            return
        running, pid = self._running[work.stream], launcher.pid(process.number) if launcher is not None else 0
        stage = answer.stage if answer is not None else ""
        self.samples[process.number] = DataProcessSampled(
            number=answer.sample.number if answer is not None else process.asked,
            pid=pid,
            work=work.work,
            stage=display_name(
                stage or ("read" if answer is not None else running.jobs_of(work.unit)[work.stage].title)
            ),
            unit=display_name(running.pipeline.tasks[work.unit].unit.name),
            is_waiting=answer is not None and answer.is_waiting,
            sample=answer.sample if answer is not None else None,
            process_status=answer.sample.process_status if answer is not None else system.read_process_status(pid),
        )

    # Starts and deaths

    def _launch(self, number: int, pool: Hashable) -> None:
        if self._launcher is None:
            self._launcher = launchers.choose_launcher(PRELOAD)
        ours, theirs = socket.socketpair()
        log = _duplicate_stderr()
        try:
            environment = launchers.derive_environment(**_ONE_THREAD, **self._visible_devices(pool, number))
            self._launcher.launch(number, environment, (theirs.fileno(), log, self._context), MODULE)
        finally:
            theirs.close()
            os.close(log)
        self._processes[number] = DataProcessHandle(ours, self._selector, number, pool)
        self._watch_launcher()

    def _visible_devices(self, pool: Hashable, number: int) -> dict[str, str]:
        """The GPUs of a process whose pool has some: those of a slot that no other process of the pool uses."""
        if not isinstance(pool, tuple) or not pool[2]:
            return {}
        self._slots = {other: entry for other, entry in self._slots.items() if other in self._processes}
        used = {slot for other_pool, slot in self._slots.values() if other_pool == pool}
        slot = next(slot for slot in range(len(used) + 1) if slot not in used)
        self._slots[number] = (pool, slot)
        return {"CUDA_VISIBLE_DEVICES": visible_devices(this_machine().gpus, pool[2], slot)}

    def collect_deaths(self) -> None:
        if self._launcher is None:
            return
        exits = self._launcher.take_exits()
        if any(process_exit.zygote_lost for process_exit in exits):
            self._unwatch_launcher()
            self._launcher.close()
            self._launcher = None
        else:
            self._watch_launcher()
        for process_exit in exits:
            process = self._processes.pop(process_exit.token, None)
            if process is not None:
                self._handle_death(process, self._describe_exit(process_exit))

    def _handle_death(self, process: DataProcessHandle, description: str) -> None:
        for message in process.take_rest():
            self._handle_message(process, message)
        self.samples.pop(process.number, None)
        work = process.assignment
        for number, running in self._running.items():
            if work is None or work.stream == number:
                running.deaths[work.unit if work is not None else None] = description
        self._schedule.on_process_died(process.number)

    def close(self) -> None:
        for process in self._processes.values():
            process.disconnect()
        self._unwatch_launcher()
        if self._launcher is not None:
            for number in self._processes:
                self._launcher.kill(number)
            self._launcher.close()
        self._processes.clear()
        os.close(self._context)

    def _describe_exit(self, process_exit: launchers.ProcessExit) -> str:
        if process_exit.zygote_lost:
            return "was lost with the process it was forked from"
        if process_exit.code == -signal.SIGKILL and system.num_oom_kills() > self._num_oom_kills:
            self._num_oom_kills = system.num_oom_kills()
            return "was killed by the kernel, out of memory"
        if process_exit.code < 0:
            return f"was killed by {signal.Signals(-process_exit.code).name}"
        return f"exited with code {process_exit.code}"

    def _watch_launcher(self) -> None:
        now = set(self._launcher.watched_fds()) if self._launcher is not None else set()
        for fd in self._watched_fds - now:
            # The descriptor is closed already, and epoll has dropped it.
            with contextlib.suppress(KeyError, ValueError, OSError):
                self._selector.unregister(fd)
        for fd in now - self._watched_fds:
            self._selector.register(fd, selectors.EVENT_READ, "launcher")
        self._watched_fds = now

    def _unwatch_launcher(self) -> None:
        for fd in self._watched_fds:
            self._selector.unregister(fd)
        self._watched_fds = set()


def _duplicate_stderr() -> int:
    """Output of user functions in data processes goes to our standard error."""
    try:
        return os.dup(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def visible_devices(gpus: Sequence[str], each: float, slot: int) -> str:
    """`CUDA_VISIBLE_DEVICES` for the process in a slot of its pool; fractions share a GPU.

    Counts from the last GPU down, because training workers get theirs from the first up.
    """
    last_first = list(reversed(gpus))
    if each >= 1:
        num = int(each)
        return ",".join(last_first[(slot * num + index) % len(gpus)] for index in range(num))
    return last_first[int(slot * each + 1e-9) % len(gpus)]
