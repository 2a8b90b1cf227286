"""However a train function ends early, the driver says it in words: kind, message, and the user's own line first."""

import ctypes
import functools
import os
import signal
import sys
import threading

import numpy as np
import pytest

from paceline import train
from paceline._control.events import WorkerFailed
from paceline.train import WorkerGroupError
from written_runs import read_events


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


class Interrupts(Exception):
    def __str__(self):
        raise KeyboardInterrupt


class OwnBase(BaseException):
    pass


class Huge(Exception):
    def __str__(self):
        return "x" * 100_000_000


def raise_from_cause():
    try:
        raise KeyError("the cause")
    except KeyError as error:
        raise ValueError("the effect") from error


def raise_group():
    raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])


def recurse(depth=0):
    return recurse(depth + 1)


def throw(error):
    raise error


def raise_class_of_main():
    kind = type("FromMain", (Exception,), {"__module__": "__main__"})
    raise kind("of the script")


CASES = {
    "plain": (lambda: throw(ValueError("loss is nan")), "user", "ValueError: loss is nan"),
    "cannot be pickled": (lambda: throw(Unpicklable("odd")), "user", "Unpicklable: odd"),
    "cannot be unpickled": (lambda: throw(TwoArguments(1, 2)), "user", "TwoArguments: 1 and 2"),
    "ends the process when unpickled": (lambda: throw(LeavesWhenMade("first")), "user", "LeavesWhenMade: only once"),
    "no text": (lambda: throw(NoText()), "user", "NoText: <its message cannot be formatted: RuntimeError>"),
    "interrupts": (lambda: throw(Interrupts()), "user", "Interrupts: <its message cannot be formatted: Keyboard"),
    "huge": (lambda: throw(Huge()), "user", "Huge: xxxx"),
    "half a character": (lambda: throw(ValueError("bad \ud800 text")), "user", r"ValueError: bad \ud800 text"),
    "many lines": (lambda: throw(ValueError("first\nsecond\r\nthird")), "user", "ValueError: first"),
    "control characters": (lambda: throw(ValueError("a\0b\x1b[31m")), "user", "ValueError: a\0b\x1b[31m"),
    "empty": (lambda: throw(ValueError()), "user", "ValueError"),
    "a cause": (raise_from_cause, "user", "ValueError: the effect"),
    "a group": (raise_group, "user", "ExceptionGroup: several (2 sub-exceptions)"),
    "recursion": (recurse, "user", "RecursionError: maximum recursion depth exceeded"),
    "not an Exception": (lambda: throw(OwnBase("base")), "user", "OwnBase: base"),
    "a class of the script": (raise_class_of_main, "user", "FromMain: of the script"),
    "memory": (lambda: throw(MemoryError("40 GB")), "memory", "MemoryError: 40 GB"),
    "storage": (lambda: throw(train.StorageError("no disk")), "storage", "StorageError: no disk"),
    "exit": (lambda: sys.exit(), "exited", "SystemExit"),
    "exit with a text": (lambda: sys.exit("not today"), "exited", "SystemExit: not today"),
    "interrupt": (lambda: (os.kill(os.getpid(), signal.SIGINT), signal.pause()), "user", "KeyboardInterrupt"),
}
"""What is done, and the kind and the first line of what is reported."""

PICKLED = {"plain", "a cause", "not an Exception", "memory", "a class of the script"}
"""Of these, the exception arrives as itself."""
REPLACED = {"cannot be pickled", "cannot be unpickled", "no text", "huge"}
"""Of these, a WorkerError with the same words stands for it."""

DEATHS = {
    "os._exit(0)": (lambda: os._exit(0), "exited", "exited with code 0 before its function returned", ""),
    "os.abort": (os.abort, "killed", "killed by SIGABRT", "Fatal Python error: Aborted"),
    "a crash in C": (lambda: ctypes.string_at(0), "killed", "killed by SIGSEGV", "Fatal Python error: Segmentation"),
    "SIGKILL": (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed", "killed by SIGKILL", ""),
}


@pytest.fixture
def fail(fit, tmp_path):
    """Runs a function that fails, and returns the error, the failure in the journal and the log."""

    def fail(function):
        with pytest.raises(WorkerGroupError) as caught:
            fit(lambda: function(), 1)
        failure = read_events(tmp_path / "run", WorkerFailed)[-1].failure
        return caught.value, failure, (tmp_path / "run/logs/attempt_1/rank_0.log").read_text()

    return fail


@pytest.mark.parametrize("case", CASES)
def test_an_exception_arrives_readable_with_the_users_own_line(fail, case):
    end, kind, message = CASES[case]
    error, failure, log = fail(end)
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
    cause = error.worker_failures[0]
    assert isinstance(cause, train.WorkerError if case in REPLACED else BaseException)
    if case in PICKLED:
        with pytest.raises(BaseException) as here:
            end()
        assert (type(cause).__name__, str(cause)) == (type(here.value).__name__, str(here.value))
    elif case in REPLACED:
        assert str(cause).startswith(message)
    if "huge" not in case:
        assert "Traceback (most recent call last)" in log
        assert message in log or "cannot be formatted" in message or "exit" in case


@pytest.mark.parametrize("case", DEATHS)
def test_a_death_is_told_by_how_it_came_and_a_crash_leaves_its_python_line_in_the_log(fail, case):
    end, kind, message, logged = DEATHS[case]
    error, failure, log = fail(end)
    assert (failure.kind, failure.message) == (kind, message)
    assert message in str(error).splitlines()[2]
    assert logged in log
    if logged:
        assert "test_exceptions.py" in log, "the line of Python that was running"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exit_or_an_exception_in_a_thread_of_the_users_ends_that_thread_only(fit, tmp_path):
    def function():
        for target in (sys.exit, functools.partial(throw, ValueError("in a thread"))):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        return "went on"

    assert fit(function, 1).return_value == "went on"
    assert "ValueError: in a thread" in (tmp_path / "run/logs/attempt_1/rank_0.log").read_text()


def report_array():
    train.report({"loss": np.ones(1001)})


def raise_because_of_it():
    try:
        report_array()
    except ValueError as problem:
        raise ConnectionError("no metrics") from problem


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        (report_array, "hint: report a reduction of it, such as x.mean().item()"),
        (raise_because_of_it, "hint: report(..., checkpoint=...) regularly"),
        (lambda: train.report({}, checkpoint="/x"), "Checkpoint.from_directory(path)"),
    ],
)
def test_the_hint_is_that_of_the_exception_itself_if_it_has_one(fail, function, hint):
    error, _, _ = fail(function)
    assert hint in str(error).splitlines()[-1]


def test_an_error_in_the_code_gets_no_hint_about_checkpoints(fail):
    error, _, _ = fail(lambda: {}["lr"])
    assert "KeyError: 'lr'" in str(error)
    assert "hint:" not in str(error)
