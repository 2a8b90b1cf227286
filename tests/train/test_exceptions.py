"""However a train function ends early, the driver says it in words: kind, message, and the user's own line first."""

import ctypes
import functools
import os
import signal
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

from paceline import train
from paceline.train import DataParallelTrainer, RunConfig, WorkerGroupError


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("no pickle")


class TwoArguments(Exception):
    """Pickles, and then cannot be made again from its message alone."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class LeavesWhenMade(Exception):
    def __init__(self, *args):
        if not args or args[0] != "first":
            raise SystemExit("made again")
        super().__init__("only once")


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text for you")

    __repr__ = __str__


class InterruptsWhenShown(Exception):
    def __str__(self):
        raise KeyboardInterrupt


class OwnBase(BaseException):
    pass


class Huge(Exception):
    def __str__(self):
        return "x" * 100_000_000


def chained():
    try:
        raise KeyError("the cause")
    except KeyError as error:
        raise ValueError("the effect") from error


def grouped():
    raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])


def recursive(depth=0):
    return recursive(depth + 1)


def warned():
    warnings.simplefilter("error")
    warnings.warn("deprecated", DeprecationWarning, stacklevel=1)


def circular():
    error = ValueError("of itself")
    error.__cause__ = KeyError("other")
    error.__cause__.__cause__ = error
    raise error


def throw(error):
    raise error


def noted():
    error = ValueError("with a note")
    error.add_note("a note " * 3)
    raise error


def as_if_from_main():
    kind = type("FromMain", (Exception,), {"__module__": "__main__"})
    raise kind("of the script")


CASES = {
    "plain": (lambda: throw(ValueError("loss is nan")), "user", "ValueError: loss is nan"),
    "cannot be pickled": (lambda: throw(Unpicklable("odd")), "user", "Unpicklable: odd"),
    "holds what cannot be pickled": (
        lambda: throw(ValueError(threading.Lock())),
        "user",
        "ValueError: <unlocked _thread",
    ),
    "cannot be unpickled": (lambda: throw(TwoArguments(1, 2)), "user", "TwoArguments: 1 and 2"),
    "ends the process when unpickled": (lambda: throw(LeavesWhenMade("first")), "user", "LeavesWhenMade: only once"),
    "no text": (lambda: throw(NoText()), "user", "NoText: <its message cannot be shown: RuntimeError>"),
    "interrupts when shown": (
        lambda: throw(InterruptsWhenShown()),
        "user",
        "InterruptsWhenShown: <its message cannot be shown: KeyboardInterrupt>",
    ),
    "huge": (lambda: throw(Huge()), "user", "Huge: xxxx"),
    "huge argument": (lambda: throw(ValueError("y" * 50_000_000)), "user", "ValueError: yyyy"),
    "half a character": (lambda: throw(ValueError("bad \ud800 text")), "user", r"ValueError: bad \ud800 text"),
    "many lines": (lambda: throw(ValueError("first\nsecond\r\nthird")), "user", "ValueError: first"),
    "control characters": (lambda: throw(ValueError("a\0b\x1b[31m")), "user", "ValueError: a\0b\x1b[31m"),
    "empty": (lambda: throw(ValueError()), "user", "ValueError"),
    "a cause": (chained, "user", "ValueError: the effect"),
    "a circle of causes": (circular, "user", "ValueError: of itself"),
    "a note": (noted, "user", "ValueError: with a note"),
    "a group": (grouped, "user", "ExceptionGroup: several (2 sub-exceptions)"),
    "recursion": (recursive, "user", "RecursionError: maximum recursion depth exceeded"),
    "a warning": (warned, "user", "DeprecationWarning: deprecated"),
    "not an Exception": (lambda: throw(OwnBase("base")), "user", "OwnBase: base"),
    "a class of the script": (as_if_from_main, "user", "FromMain: of the script"),
    "memory": (lambda: throw(MemoryError("40 GB")), "memory", "MemoryError: 40 GB"),
    "storage": (lambda: throw(train.StorageError("no disk")), "storage", "StorageError: no disk"),
    "exit 0": (lambda: sys.exit(0), "exited", "SystemExit: 0"),
    "exit": (lambda: sys.exit(), "exited", "SystemExit"),
    "exit 1": (lambda: sys.exit(1), "exited", "SystemExit: 1"),
    "exit with a text": (lambda: sys.exit("not today"), "exited", "SystemExit: not today"),
    "interrupt": (lambda: throw(KeyboardInterrupt()), "user", "KeyboardInterrupt"),
    "generator exit": (lambda: throw(GeneratorExit()), "user", "GeneratorExit"),
    "SIGINT": (lambda: (os.kill(os.getpid(), signal.SIGINT), signal.pause()), "user", "KeyboardInterrupt"),
}
"""What is done, and the kind and the first line of what is told."""

DEATHS = {
    "os._exit(0)": (lambda: os._exit(0), "exited", "exited with code 0 before its function returned", ""),
    "os._exit(3)": (lambda: os._exit(3), "exited", "exited with code 3 before its function returned", ""),
    "os.abort": (os.abort, "killed", "killed by SIGABRT", "Fatal Python error: Aborted"),
    "a crash in C": (lambda: ctypes.string_at(0), "killed", "killed by SIGSEGV", "Fatal Python error: Segmentation"),
    "a bus error": (
        lambda: os.kill(os.getpid(), signal.SIGBUS), "killed", "killed by SIGBUS", "Fatal Python error: Bus error",
    ),
    "SIGKILL": (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed", "killed by SIGKILL", ""),
}  # fmt: skip


def failure_of(function, path):
    with pytest.raises(WorkerGroupError) as caught:
        DataParallelTrainer(function, run_config=RunConfig(name="run", storage_path=path)).fit()
    return caught.value, failures_in(path / "run")[-1]


def failures_in(root):
    from paceline._control import journal
    from paceline._control.events import WorkerFailed

    return [event.failure for event in journal.read(root / "journal.jsonl") if isinstance(event, WorkerFailed)]


@pytest.mark.parametrize("case", CASES)
def test_an_exception_arrives_readable_with_the_users_own_line(tmp_path, case):
    end, kind, message = CASES[case]

    def function():
        end()

    error, failure = failure_of(function, tmp_path)
    assert failure.kind == kind
    assert failure.message.startswith(message)
    assert len(failure.message) < 3000
    assert len(failure.traceback) < 200_000
    assert any("test_exceptions.py:" in frame for frame in failure.frames)
    assert not any("/paceline/" in frame for frame in failure.frames), "the user's own frames only"
    lines = str(error).splitlines()
    assert message in lines[2]
    assert "test_exceptions.py:" in lines[3]
    assert len(str(error)) < 10_000
    assert isinstance(error.worker_failures[0], BaseException)
    if "huge" not in case:
        log = Path(tmp_path, "run", "logs", "attempt_1", "rank_0.log").read_text()
        assert "Traceback (most recent call last)" in log
        assert message in log or "cannot be shown" in message or "exit" in case


@pytest.mark.parametrize("case", DEATHS)
def test_a_death_is_told_by_how_it_came_and_a_crash_leaves_its_python_line_in_the_log(tmp_path, case):
    end, kind, message, logged = DEATHS[case]

    def function():
        end()

    error, failure = failure_of(function, tmp_path)
    assert (failure.kind, failure.message) == (kind, message)
    assert message in str(error).splitlines()[2]
    log = Path(tmp_path, "run", "logs", "attempt_1", "rank_0.log").read_text()
    assert logged in log
    if logged:
        assert "test_exceptions.py" in log, "the line of Python that was running"


@pytest.mark.parametrize(
    "case", ["plain", "a cause", "not an Exception", "memory", "interrupt", "exit 1", "a class of the script"]
)
def test_an_exception_that_pickles_arrives_as_itself(tmp_path, case):
    end, _, _ = CASES[case]

    def function():
        end()

    error, _ = failure_of(function, tmp_path)
    cause = error.worker_failures[0]
    with pytest.raises(BaseException) as here:
        end()
    assert type(cause).__name__ == type(here.value).__name__
    assert str(cause) == str(here.value)


@pytest.mark.parametrize("case", ["cannot be pickled", "cannot be unpickled", "no text", "huge"])
def test_one_that_does_not_is_stood_in_for_by_its_words(tmp_path, case):
    end, _, message = CASES[case]

    def function():
        end()

    error, _ = failure_of(function, tmp_path)
    assert isinstance(error.worker_failures[0], train.WorkerError)
    assert str(error.worker_failures[0]).startswith(message)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exit_or_an_exception_in_a_thread_of_the_users_ends_that_thread_only(tmp_path):
    def function():
        for target in (sys.exit, functools.partial(throw, ValueError("in a thread"))):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        return "went on"

    result = DataParallelTrainer(function, run_config=RunConfig(name="run", storage_path=tmp_path)).fit()
    assert result.return_value == "went on"
    assert "ValueError: in a thread" in Path(tmp_path, "run", "logs", "attempt_1", "rank_0.log").read_text()


def test_the_hint_is_that_of_the_exception_if_it_has_one(tmp_path):
    def function():
        train.report({"loss": np.ones(3)})

    error, _ = failure_of(function, tmp_path)
    assert str(error).splitlines()[-1].startswith("hint: report a reduction of it, such as x.mean().item()")


def test_the_hint_is_not_that_of_an_exception_that_led_to_another(tmp_path):
    def function():
        try:
            train.report({"loss": np.ones(3)})
        except ValueError as problem:
            raise RuntimeError("no metrics") from problem

    error, _ = failure_of(function, tmp_path)
    assert str(error).splitlines()[-1].startswith("hint: report(..., checkpoint=...) now and then")
