"""The life of a worker: take over stdio, hear who we are, load the job, run the user's function, say how it went.

The function runs in the main thread, where signals, CUDA and debuggers expect it.
"""

from __future__ import annotations

import atexit
import mmap
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle
from msgspec import Raw

from paceline._core import spending
from paceline._core.errors import StorageError
from paceline._core.frames import from_users_code, user_frames
from paceline._core.plain import plain, printable
from paceline._core.process import flush_stdio, forget_inherited_exits, reseed, take_over_stdio
from paceline._engine.messages import (
    ON_CLUSTER,
    Begin,
    Failure,
    FailureKind,
    Guest,
    Measure,
    Profile,
    Sample,
    ToWorker,
    Used,
    WorkerFailed,
    WorkerReady,
    WorkerReturned,
    encode,
)
from paceline._worker import context as worker_context
from paceline._worker.context import Context, StopTraining
from paceline._worker.link import Link
from paceline._worker.profiling import Profiling
from paceline._worker.script import stand_for_script
from paceline._worker.signals import noticing
from paceline._worker.stacks import sampled
from paceline._worker.usage import Usage

_MAX_TEXT = 100_000
_OF_TIME = ("timed out", "timing out", "timeout")
"""In the words of gloo and NCCL: a collective that others never came to is no echo of their end."""

_OUT_OF_MEMORY = (": RESOURCE_EXHAUSTED: Out of memory", "DefaultCPUAllocator: can't allocate memory")
"""In the words of JAX, and of torch where it is not on a GPU."""

Job = tuple[Callable[..., Any], Any, Any]
"""The user's function, its configuration (None: it is called without), and the backend around it."""


def run(*, control_fd: int, log_fd: int, job_fd: int) -> int:
    """Be a worker until its work is done; returns the exit code."""
    take_over_stdio(log_fd)
    forget_inherited_exits()
    reseed()
    link = Link(socket.socket(fileno=control_fd), gone=_leave_at_once)
    begin = link.receive()
    assert isinstance(begin, Begin)
    context = Context(begin, link)
    if begin.data_address.startswith(ON_CLUSTER):
        threading.Thread(target=_approach, args=(begin.data_address,), name="paceline-approach", daemon=True).start()

    usage = Usage(context)
    link.listen(hearing(context, link, usage), context.signalled)
    with noticing(link):
        code = work(context, link, usage, lambda: _loaded(job_fd, begin.guest))
    if code == 0:
        # What an interpreter does when it ends, without taking every module apart.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    flush_stdio()
    return code


def hearing(context: Context, link: Link, usage: Usage) -> Callable[[ToWorker], None]:
    """What is done with each message, on the listening thread."""
    begin = context.begin
    profiling = Profiling(begin.attempt, begin.rank, link.send, context.made_scratch)
    context.at_the_end = profiling.finish

    def take(message: ToWorker) -> None:
        # What is asked about this process is not for the context: a main thread that holds its lock is to be seen.
        if isinstance(message, Sample):
            link.send(sampled(begin.attempt, begin.rank, message.number))
        elif isinstance(message, Profile):
            profiling.begin(message.number, message.seconds)
        elif isinstance(message, Measure):
            link.send(Used(begin.attempt, usage.now()))
        else:
            context.take(message)

    return take


def work(context: Context, link: Link, usage: Usage, load: Callable[[], Job]) -> int:
    """Run the job and tell the driver how it ended."""
    begin = context.begin
    worker_context.enter(context)
    spending.enter(context.spending)
    stopped = False
    value: Any = None
    try:
        try:
            function, config, backend = load()
            stand_for_script(function)
            context.config = config
            with backend.around(context):
                link.send(WorkerReady(begin.attempt, begin.rank, os.getpid()))
                try:
                    with context.spending.at(spending.OWN):
                        value = function() if config is None else function(config)
                except StopTraining:
                    stopped = True
                context.finish()
        finally:
            spending.leave(context.spending)
            worker_context.leave()
        plain_value, pickled = _carried(value)
        message = WorkerReturned(
            begin.attempt, begin.rank, context.num_reports, context.last_where, stopped, plain_value, pickled
        )
    except BaseException as error:  # noqa: BLE001  a SystemExit before the end is a failure like any other
        error.__traceback__ = from_users_code(error.__traceback__)
        context.error = error
        _print_traceback(error)
        failed = WorkerFailed(begin.attempt, begin.rank, _failure(context, error), _pickled(error))
        flush_stdio()
        context.spending.stop()
        link.send(Used(begin.attempt, usage.now()))
        link.send(failed)
        link.flush()
        context.wait_for_exit()
        return 1
    flush_stdio()
    context.at_the_end()
    context.spending.stop()
    link.send(Used(begin.attempt, usage.now()))
    link.send(message)
    context.wait_for_exit()
    return 0


def _approach(address: str) -> None:
    """Connect to the cluster that the rows lie on, while the job is being loaded; who takes rows hears of problems."""
    from paceline.data.exec.ray.feeds import service_at

    service_at(address)


def _leave_at_once() -> None:
    os._exit(0)


def _print_traceback(error: BaseException) -> None:
    print(_safe_traceback(error).rstrip("\n"), file=sys.stderr)


def _failure(context: Context, error: BaseException) -> Failure:
    kind: FailureKind = "storage" if isinstance(error, StorageError) else "user"
    if isinstance(error, SystemExit):
        kind = "exited"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # of torch, on a GPU
        kind = "memory"
    if any(sign in _one_line(error) for sign in _OUT_OF_MEMORY):
        kind = "memory"
    return Failure(
        context.begin.rank,
        kind,
        _one_line(error),
        at=time.time(),
        pid=os.getpid(),
        host=socket.gethostname(),
        frames=user_frames(error),
        traceback=_safe_traceback(error),
        collateral=_is_echo(error) or error is context.echo,
        transient=isinstance(error, OSError),
    )


def _is_echo(error: BaseException) -> bool:
    """Whether an exception looks like another rank's end, seen from here: a peer that closed its connection."""
    text = _one_line(error).lower()
    signs = (
        "connection closed by peer",
        "connection reset by peer",
        "broken pipe",
        "connection was likely closed",
    )
    distributed = (
        "gloo" in text,
        "nccl" in text,
        "coordination service" in text,  # JAX's
        type(error).__name__.startswith("Dist"),
    )
    return any(sign in text for sign in signs) or (any(distributed) and not any(word in text for word in _OF_TIME))


def _one_line(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as problem:  # noqa: BLE001  the user's own __str__ raises; say so in its place
        text = f"<its message cannot be shown: {type(problem).__name__}>"
    first = printable(next(iter(text[:_MAX_TEXT].strip().splitlines()), ""))
    told = f"{type(error).__name__}: {first[:2000]}" if first else type(error).__name__
    return f"{told} ({noted})" if (noted := _first_note(error)) else told


def _first_note(error: BaseException) -> str:
    """What was noted first, on one line: of an exception in a dataset's function, the file, the row and the line."""
    notes = getattr(error, "__notes__", None)
    if not isinstance(notes, list) or not notes or not isinstance(notes[0], str):
        return ""
    return printable("; ".join(line.strip() for line in notes[0].splitlines() if line.strip())[:500])


def _safe_traceback(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001  see `_one_line`
        text = "".join(traceback.format_tb(error.__traceback__)) + _one_line(error)
    return printable(text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT // 2]}\n...\n{text[-_MAX_TEXT // 2 :]}")


def _pickled(error: BaseException) -> bytes | None:
    """The exception itself, for the driver to raise from; None where it does not survive the journey."""
    try:
        if len(str(error)) > _MAX_TEXT:
            return None  # Raised in the driver it would fill the terminal.
        data: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(data)
    except BaseException:  # noqa: BLE001  its class may raise anything; the text of it has been taken already
        return None
    return data if len(data) <= 1 << 20 else None


def _carried(value: Any) -> tuple[Raw, bytes | None]:
    """A returned value: as plain data if it is plain, else as a pickle that stays in the driver's memory."""
    if value is None:
        return Raw(b"null"), None
    try:
        return Raw(encode(plain(value, "the returned value"))), None
    except (TypeError, ValueError):
        pass
    return Raw(b"null"), pickled_value(value)


def pickled_value(value: Any) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"the returned value cannot be sent to the driver: {error}\n\n"
            "hint: return numbers, strings, lists, dicts or arrays, and keep models in a checkpoint"
        ) from error
    return data


def _loaded(job_fd: int, guest: Guest | None) -> Job:
    if guest is not None:
        from paceline._engine.ray.guest import welcome

        welcome(guest)
    # Mapped, not read: the descriptor, and with it the position, is shared by all workers.
    with mmap.mmap(job_fd, 0, prot=mmap.PROT_READ) as job, memoryview(job) as view:
        os.close(job_fd)
        loaded: Job = cloudpickle.loads(view)
        return loaded
