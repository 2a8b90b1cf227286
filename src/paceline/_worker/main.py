"""The main function of a worker: set up stdio, load the job, run the user's function, report the result.

The function runs in the main thread, where signals, CUDA and debuggers expect it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import logging
import mmap
import os
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import cloudpickle
from msgspec import Raw

from paceline._core import settings, system, time_accounting
from paceline._core.errors import StorageError
from paceline._core.frames import trim_to_user_code, user_frames
from paceline._core.plain_values import to_plain, to_printable
from paceline._core.process_setup import flush_stdio, redirect_stdio, reseed_generators, reset_exit_handlers
from paceline._core.system import make_private_dirs
from paceline._engine import messages
from paceline._engine.messages import WorkerInit, encode_message
from paceline._engine.stacks import sample_stacks
from paceline._worker import context as worker_context
from paceline._worker.context import StopTraining, WorkerContext
from paceline._worker.exit_delay import report_delayed_exit
from paceline._worker.link import DriverLink
from paceline._worker.profiler import Profiler
from paceline._worker.signals import forward_signals
from paceline._worker.usage import UsageMeter

log = logging.getLogger("paceline")

_MAX_TEXT = 100_000
_TIMEOUT_WORDS = ("timed out", "timing out", "timeout")
"""Wording of gloo and NCCL: a collective that other ranks never joined is not a consequence of their exit."""

_CLOSED_BY_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection was likely closed",
)
_COLLECTIVES = ("gloo", "nccl", "coordination service")
"""The last is JAX's."""

_OUT_OF_MEMORY = (
    ": RESOURCE_EXHAUSTED: Out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "killed by the kernel, out of memory",
)
"""Wording of JAX, of torch when not on a GPU, and of ours about a data process."""
_CHILD_KILLED = re.compile(
    r"DataLoader worker \(pid.*\) (is killed by signal: Killed|exited unexpectedly)"
    r"|A process in the process pool was terminated abruptly"
    r"|died with <Signals\.SIGKILL"
)
"""Wording of torch, `concurrent.futures` and `subprocess` about a child that did not end by itself."""

Job = tuple[Callable[..., Any], Any, Any]
"""The user's function, its configuration (None: call it without), and the backend around it."""


def run(*, control_fd: int, log_fd: int, job_fd: int) -> int:
    """Run as a worker until the work is done; return the exit code."""
    redirect_stdio(log_fd)
    reset_exit_handlers()
    reseed_generators()
    link = DriverLink(socket.socket(fileno=control_fd), on_gone=lambda: os._exit(0))
    begin = link.receive()
    assert isinstance(begin, WorkerInit)
    context = WorkerContext(begin, link)
    if begin.data_address.startswith(messages.RAY_ROWS_PREFIX):
        target, name = functools.partial(_connect_to_data_service, begin.data_address), "paceline-approach"
        threading.Thread(target=target, name=name, daemon=True).start()
    usage = UsageMeter(context)
    link.listen(make_message_handler(context, link, usage), context.handle_signal)
    with forward_signals(link):
        code = work(context, link, usage, lambda: _load_job(job_fd, begin.ray_connection))
    if code == 0:
        with report_delayed_exit(context, link):
            # What an interpreter does at exit, without tearing down every module.
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
    flush_stdio()
    return code


def make_message_handler(
    context: WorkerContext, link: DriverLink, usage: UsageMeter
) -> Callable[[messages.ToWorker], None]:
    """Return the handler of messages, which runs on the listening thread."""
    begin = context.begin
    profiling = Profiler(begin.attempt, begin.rank, link.send, context.uploader.scratch_directory)
    context.before_return = profiling.finish

    def handle(message: messages.ToWorker) -> None:
        # Queries about this process bypass the context: a main thread that holds its lock must still be visible.
        if isinstance(message, messages.SampleStacks):
            link.send(sample_stacks(begin.attempt, begin.rank, message.number))
        elif isinstance(message, messages.RecordProfile):
            profiling.start(message.number, message.seconds)
        elif isinstance(message, messages.MeasureUsage):
            link.send(_report_usage(context, usage))
        else:
            context.handle_message(message)

    return handle


def work(context: WorkerContext, link: DriverLink, usage: UsageMeter, load: Callable[[], Job]) -> int:
    """Run the job and tell the driver how it ended."""
    begin = context.begin
    worker_context.push_context(context)
    time_accounting.attach_clock(context.time_accounting)
    stopped = False
    value: Any = None
    message: messages.WorkerReturned | messages.WorkerFailed
    try:
        try:
            function, config, backend = load()
            context.restart_modules = backend.preload_later
            expose_script_globals(function)
            if begin.has_own_directory:
                enter_directory(context.layout.artifacts)
            context.config = config
            if begin.log_level:
                logging.getLogger("paceline").setLevel(begin.log_level)
            with _copy_output(begin), backend.around(context):
                link.send(
                    messages.WorkerReady(
                        begin.attempt, begin.rank, os.getpid(), socket.gethostname(), begin.node_address, time.time()
                    )
                )
                try:
                    with context.time_accounting.at(time_accounting.USER_CODE):
                        value = function() if config is None else function(config)
                except StopTraining:
                    stopped = True
                context.finish()
        finally:
            if begin.has_own_directory and begin.store is not None:
                _upload_artifacts(context)
            time_accounting.detach_clock(context.time_accounting)
            worker_context.pop_context()
        ids, where = (begin.attempt, begin.rank), context.last_report_site
        message = messages.WorkerReturned(*ids, context.num_reports, where, stopped, *_encode_return_value(value))
    except BaseException as error:  # noqa: BLE001
        error.__traceback__ = trim_to_user_code(error.__traceback__)
        context.error = error
        print(_safe_traceback(error).rstrip("\n"), file=sys.stderr)
        message = messages.WorkerFailed(begin.attempt, begin.rank, _make_failure(context, error), _pickle_error(error))
    flush_stdio()
    if context.error is None:
        context.before_return()
    context.time_accounting.stop()
    link.send(_report_usage(context, usage))
    link.send(message)
    link.flush()
    context.wait_for_exit()
    return 0 if context.error is None else 1


def _report_usage(context: WorkerContext, usage: UsageMeter) -> messages.UsageReported:
    imported = tuple(name for name in context.restart_modules if name in sys.modules)
    return messages.UsageReported(context.begin.attempt, usage.measure(), imported)


def _connect_to_data_service(address: str) -> None:
    """Connect to the cluster that holds the rows while the job loads; whoever reads rows gets the errors."""
    from paceline.data.exec.ray.serving.feeds import get_service_client

    get_service_client(address)


def _make_failure(context: WorkerContext, error: BaseException) -> messages.WorkerFailure:
    summary = _summarize_error(error)
    kind: messages.FailureKind = "storage" if isinstance(error, StorageError) else "user"
    if isinstance(error, SystemExit):
        kind = "exited"
    is_from_torch = type(error).__name__ == "OutOfMemoryError"  # on a GPU
    if is_from_torch or isinstance(error, MemoryError) or any(sign in summary for sign in _OUT_OF_MEMORY):
        kind = "memory"
    elif system.num_oom_kills() > context.num_oom_kills and _is_about_killed_child(error):
        kind, summary = "memory", f"out of memory: the kernel killed a process that this worker started: {summary}"
    return messages.WorkerFailure(
        context.begin.rank,
        kind,
        summary,
        at=time.time(),
        pid=os.getpid(),
        host=socket.gethostname(),
        frames=user_frames(error),
        traceback=_safe_traceback(error),
        collateral=_is_secondary(error) or error is context.secondary_error,
        transient=isinstance(error, OSError),
    )


def _is_about_killed_child(error: BaseException) -> bool:
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.append(following)
        following = following.__cause__ or following.__context__
    return any(_CHILD_KILLED.search(_summarize_error(each)) for each in chain)


def _is_secondary(error: BaseException) -> bool:
    """Whether an exception looks like the exit of another rank, such as a peer that closed its connection."""
    text = _summarize_error(error).lower()
    if any(sign in text for sign in _CLOSED_BY_PEER):
        return True
    is_distributed = type(error).__name__.startswith("Dist") or any(word in text for word in _COLLECTIVES)
    return is_distributed and not any(word in text for word in _TIMEOUT_WORDS)


def _summarize_error(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as problem:  # noqa: BLE001
        text = f"<its message cannot be formatted: {type(problem).__name__}>"
    first = to_printable(next(iter(text[:_MAX_TEXT].strip().splitlines()), ""))
    summary = f"{type(error).__name__}: {first[:2000]}" if first else type(error).__name__
    return f"{summary} ({note})" if (note := _first_note(error)) else summary


def _first_note(error: BaseException) -> str:
    """The first note on one line: for an exception in a dataset's function, the file, the row and the line."""
    notes = getattr(error, "__notes__", None)
    if not isinstance(notes, list) or not notes or not isinstance(notes[0], str):
        return ""
    return to_printable("; ".join(line.strip() for line in notes[0].splitlines() if line.strip())[:500])


def _safe_traceback(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001
        text = "".join(traceback.format_tb(error.__traceback__)) + _summarize_error(error)
    return to_printable(text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT // 2]}\n...\n{text[-_MAX_TEXT // 2 :]}")


def _pickle_error(error: BaseException) -> bytes | None:
    """Pickle the exception for the driver to raise from; None if it cannot be pickled and restored."""
    try:
        if len(str(error)) > _MAX_TEXT:
            return None  # Raised in the driver, it would fill the terminal.
        data: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(data)
    except BaseException:  # noqa: BLE001
        return None
    return data if len(data) <= 1 << 20 else None


def _encode_return_value(value: Any) -> tuple[Raw, bytes | None]:
    """Encode a return value: as plain data if possible, else as a pickle that stays in the driver's memory."""
    if value is None:
        return Raw(b"null"), None
    try:
        return Raw(encode_message(to_plain(value, "the returned value"))), None
    except (TypeError, ValueError):
        pass
    return Raw(b"null"), pickle_return_value(value)


def pickle_return_value(value: Any) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"cannot send the return value to the driver: {error}\n\n"
            "hint: return numbers, strings, lists, dicts or arrays, and keep models in a checkpoint"
        ) from error
    return data


def _load_job(job_fd: int, ray_connection: messages.RayConnectionSpec | None) -> Job:
    if ray_connection is not None:
        from paceline._engine.ray.ray_in_worker import prepare_ray_connection

        prepare_ray_connection(ray_connection)
    # Mapped, not read: all workers share the descriptor, and with it the file position.
    with mmap.mmap(job_fd, 0, prot=mmap.PROT_READ) as job, memoryview(job) as view:
        os.close(job_fd)
        loaded: Job = cloudpickle.loads(view)
        return loaded


@contextlib.contextmanager
def _copy_output(begin: WorkerInit) -> Iterator[None]:
    """Write what Python code prints also to the files of `RunConfig(log_to_file=...)`."""
    if not begin.log_files:
        yield
        return
    with contextlib.ExitStack() as closing:
        opened = {name: closing.enter_context(open(f"{begin.run_path}/{name}", "a")) for name in begin.log_files}
        output, errors = (opened[name] for name in begin.log_files)
        closing.enter_context(contextlib.redirect_stdout(_CopiedStream(sys.stdout, output)))
        closing.enter_context(contextlib.redirect_stderr(_CopiedStream(sys.stderr, errors)))
        yield


class _CopiedStream(io.TextIOBase):
    """A text stream that also writes to a second one."""

    def __init__(self, stream: TextIO, copy: TextIO) -> None:
        self._stream = stream
        self._copy = copy

    def write(self, text: str) -> int:
        self._copy.write(text)
        return self._stream.write(text)

    def flush(self) -> None:
        self._copy.flush()
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()


def enter_directory(path: Path) -> None:
    """Make this the working directory. Modules beside the script are still found."""
    os.environ[settings.ORIGINAL_DIRECTORY] = original = os.getcwd()
    sys.path[:] = [os.path.join(original, entry) for entry in sys.path]
    make_private_dirs(path)
    os.chdir(path)


def _upload_artifacts(context: WorkerContext) -> None:
    """Upload what is in the working directory of a run in a store, or say that it stays here."""
    directory = context.layout.artifacts
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    if not files:
        return
    if not context.begin.uploads_artifacts:
        text = "%d files in the working directory %s are not uploaded\n\nhint: use SyncConfig(sync_artifacts=True)"
        log.warning(text, len(files), directory)
        return
    try:
        for path in files:
            context.store.upload_file(path)
    except OSError as error:
        log.error("cannot upload the files in the working directory %s: %s", directory, error)


def expose_script_globals(function: Callable[..., Any]) -> None:
    """Let `__main__` have the globals of the function's script, as far as they were sent along.

    Functions of the script reach a worker as bytes and still claim to be defined in `__main__`, where `pickle` and
    `torch.compile` look up their globals.
    """
    inner: Any = function
    while inner is not None and not hasattr(inner, "__globals__"):
        # A partial, or an object of ours that names the function that it calls.
        inner = inner.func if isinstance(inner, functools.partial) else getattr(inner, "inner_function", None)
    scope: Any = getattr(inner, "__globals__", None)
    main: Any = sys.modules["__main__"]

    def get_script_global(name: str) -> Any:
        if name in scope:  # Looked up each time, because a script may change its variables.
            return scope[name]
        raise AttributeError(f"module '__main__' has no attribute {name!r}")

    if isinstance(scope, dict) and scope.get("__name__") in ("__main__", "__mp_main__") and scope is not vars(main):
        main.__getattr__ = get_script_global
