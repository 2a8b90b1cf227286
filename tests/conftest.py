"""What every test stands on: nothing outlives it, nothing is written to the home directory.

A test that leaves something behind fails by the name of what it left; what can be put back is, so that the
next test is judged on its own. Whatever the tests start carries a mark in its environment: a process is
found also when the one that started it is gone.
"""

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import hypothesis
import psutil
import pytest

from faulty_proxy import s3_proxy
from processes import find_processes
from servers import gcs_server, s3_environment, s3_server, s3fs_filesystem

pytest_plugins = ("fault_table", "outcome_log")

__all__ = ["gcs_server", "s3_environment", "s3_proxy", "s3_server", "s3fs_filesystem"]
"""Fixtures of other modules that every test may ask for."""

GRACE_S = 5.0
"""How long processes, threads and shared memory may take to go once a test has ended."""

# The suite gives the same answer every time: property tests draw their examples from fixed seeds. `make fuzz` draws
# fresh ones, and keeps those that fail in .hypothesis. How fast the machine is fails neither.
_any_speed = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("fixed", derandomize=True, database=None, **_any_speed)
hypothesis.settings.register_profile("fuzz", max_examples=1000, print_blob=True, **_any_speed)
hypothesis.settings.load_profile("fixed")

SHM = Path("/dev/shm")
MARK = "PACELINE_TEST_SESSION"
ZYGOTE = "paceline._engine.local.zygote"
BROWSER = "chrom"
RESOURCE_TRACKER = "from multiprocessing.resource_tracker import main"
LASTING_THREADS = {"paceline-starter", "paceline-asking"}
"""The one starts processes, which would end with it; the other asks for a cluster, and ends when that answers."""
IGNORED_VARIABLES = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"}
"""torch sets the second itself, when its compiler is first imported, and scikit-learn the last two."""
IGNORED_SIGNALS = {signal.SIGALRM}
"""pytest-timeout's, which takes its handler back earlier when a test fails."""

_session = pytest.StashKey[tuple[pytest.MonkeyPatch, Path]]()


def pytest_configure(config: pytest.Config) -> None:
    # Not a fixture: importing a test module may already start the process that workers fork from.
    patch = pytest.MonkeyPatch()
    path = Path(tempfile.mkdtemp(prefix="paceline-tests-"))
    patch.setenv("PACELINE_STORAGE_PATH", str(path))
    patch.setenv("PACELINE_SPOOL_PATH", str(path / "spool"))
    patch.setenv(MARK, uuid.uuid4().hex)
    # Interpreters that wait for a next run of the same test, which never comes, would only cost time.
    patch.setattr("paceline._engine.local.spare_interpreters.MAX_SPARES", 0)
    # The thousands of objects of a collection live as long as the session: nothing is won by looking at them again.
    gc.disable()
    # A shell's background job starts with SIGINT ignored, and so would every process that a test interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_session] = patch, path


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    patch, path = config.stash[_session]
    patch.undo()
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs source as a script of its own, in `tmp_path`, and returns how it ended and what it printed."""

    def run(
        source: str, *args: str, env: Mapping[str, str] | None = None, timeout: float = 240
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(source)
        command = [sys.executable, str(script), *args]
        # Files, not pipes: a pipe that a leaked grandchild still holds would make us wait for it for ever.
        with (tmp_path / "script.out").open("w+b") as out, (tmp_path / "script.err").open("w+b") as err:
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            try:
                ended = subprocess.run(
                    command, **streams, cwd=tmp_path, env={**os.environ, **(env or {})}, timeout=timeout
                )
            except subprocess.TimeoutExpired as error:
                error.add_note("\n".join(_text(file) for file in (out, err)))
                raise
            return subprocess.CompletedProcess(command, ended.returncode, _text(out), _text(err))

    return run


@pytest.fixture
def processes_in() -> Callable[[Path], list[psutil.Process]]:
    """Finds every process that works in a directory: a script's driver, its zygote and their workers."""

    def find(directory: Path) -> list[psutil.Process]:
        return find_processes(lambda p: p.cwd() == str(directory) and p.status() != psutil.STATUS_ZOMBIE)

    return find


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = _Surroundings()
    yield
    problems = [
        *_left_processes(before),
        *_left_threads(before),
        *_left_shared_memory(before),
        *_changed_variables(before),
        *_changed_signal_handlers(before),
        *_changed_directory(before),
    ]
    if problems:
        pytest.fail("the test left something behind:\n  " + "\n  ".join(problems), pytrace=False)


class _Surroundings:
    def __init__(self) -> None:
        self.pids = frozenset(psutil.pids())
        self.threads = frozenset(threading.enumerate())
        self.shared_memory = _shared_memory()
        self.variables = _variables()
        self.signal_handlers = _signal_handlers()
        self.directory = os.getcwd()


def _left_processes(before: _Surroundings) -> list[str]:
    deadline = time.monotonic() + GRACE_S
    # What was waited for may have started others meanwhile, and these may be about to end, too.
    while (left := _new_processes(before)) and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=0.2)
    problems = [f"process {_describe(process)}" for process in left]
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=GRACE_S)
    return problems


def _new_processes(before: _Surroundings) -> list[psutil.Process]:
    me, mark = psutil.Process(), before.variables[MARK]
    pids = set(psutil.pids()) - before.pids
    if not pids:
        return []
    marked = find_processes(lambda process: process != me and process.environ().get(MARK) == mark, pids)
    new = {*(child for child in me.children(recursive=True) if child.pid in pids), *marked}
    return [process for process in new if not _may_stay(process, me) and not _is_of_a_browser(process, before)]


def _may_stay(process: psutil.Process, me: psutil.Process) -> bool:
    """What serves all tests of a session: the zygote and its heir, and the interpreter's tracker of named memory.

    All forks of the zygote have its command line; a worker leads a session of its own, the heir does not.
    """
    try:
        command = " ".join(process.cmdline())
        if process.ppid() == me.pid:
            return ZYGOTE in command or RESOURCE_TRACKER in command
        parent = process.parent()
        is_fork = parent is not None and parent.ppid() == me.pid and ZYGOTE in command
        return is_fork and os.getsid(process.pid) != process.pid
    except (ProcessLookupError, psutil.Error):
        return False


def _is_of_a_browser(process: psutil.Process, before: _Surroundings) -> bool:
    """Of one that several tests share: it starts processes when it likes, minutes after its start, too."""
    try:
        return any(parent.pid in before.pids and BROWSER in parent.name() for parent in process.parents())
    except psutil.Error:
        return False


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} ({process.status()}): {' '.join(process.cmdline()) or process.name()}"
    except psutil.Error:
        return f"{process.pid}: gone by now"


def _left_threads(before: _Surroundings) -> list[str]:
    """Daemon threads of others may stay; ours may not, but for those that serve a process as long as it lasts."""
    left = [
        thread
        for thread in threading.enumerate()
        if thread not in before.threads
        and (not thread.daemon or (thread.name.startswith("paceline") and thread.name not in LASTING_THREADS))
    ]
    deadline = time.monotonic() + GRACE_S
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [f"thread {thread.name!r}" for thread in left if thread.is_alive()]


def _shared_memory() -> frozenset[str]:
    return frozenset(os.listdir(SHM)) if SHM.is_dir() else frozenset()


def _left_shared_memory(before: _Surroundings) -> list[str]:
    deadline = time.monotonic() + GRACE_S
    left = _shared_memory() - before.shared_memory
    # Others, such as the tests in the process beside this one, create and remove some at any moment: only what stays
    # for the whole time, and is mapped by nobody else, was left behind. It is not removed: it could be somebody else's.
    while left and time.monotonic() < deadline:
        mapped = _files_mapped_by_others()
        left = {name for name in left & _shared_memory() if str(SHM / name) not in mapped}
        if left:
            time.sleep(0.05)
    return [f"shared memory {SHM / name}" for name in sorted(left)]


def _files_mapped_by_others() -> set[str]:
    """Files that processes outside these tests have mapped: the directory belongs to the whole machine."""
    me = psutil.Process()
    ours = {me, *me.children(recursive=True)}
    mapped = set()
    for process in psutil.process_iter():
        if process not in ours:
            with contextlib.suppress(psutil.Error):
                mapped.update(region.path for region in process.memory_maps())
    return mapped


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in IGNORED_VARIABLES}


def _changed_variables(before: _Surroundings) -> list[str]:
    now = _variables()
    names = sorted(name for name in now.keys() | before.variables.keys() if now.get(name) != before.variables.get(name))
    for name in names:
        if name in before.variables:
            os.environ[name] = before.variables[name]
        else:
            del os.environ[name]
    return [f"environment variable {name}: {before.variables.get(name)!r} became {now.get(name)!r}" for name in names]


def _signal_handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals() - IGNORED_SIGNALS}


def _changed_signal_handlers(before: _Surroundings) -> list[str]:
    problems = []
    for number, handler in _signal_handlers().items():
        was = before.signal_handlers[number]
        if handler != was:
            problems.append(f"handler of signal {number} ({signal.strsignal(number)}): now {handler!r}")
            if was is not None:  # None was installed by C code, and Python cannot put it back
                signal.signal(number, was)
    return problems


def _changed_directory(before: _Surroundings) -> list[str]:
    try:
        now = os.getcwd()
    except FileNotFoundError:
        now = "a directory that is gone"
    if now == before.directory:
        return []
    os.chdir(before.directory)
    return [f"working directory: {before.directory} became {now}"]
