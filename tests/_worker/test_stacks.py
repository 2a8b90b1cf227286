"""What a worker says of its own threads."""

import threading
import time
from pathlib import Path

import pytest

from paceline._core.frames import is_library
from paceline._worker.stacks import called, sampled


class Looked:
    """Looks at the main thread from another one, while that is inside a call; the outcome is there afterwards."""

    def __init__(self, num_looks=1):
        self.samples = []
        self.begun = threading.Event()
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(num_looks,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self._thread.join()

    def _look(self, num_looks):
        self.begun.wait()
        for number in range(num_looks):
            self.samples.append(sampled(1, 0, number))
        self.over.set()


def stood(looked, wait):
    """Like a function of a library: it returns when it has been looked at."""
    looked.begun.set()
    wait()


def test_the_users_line_and_what_it_calls_are_told():
    lock = threading.Lock()
    lock.acquire()
    with Looked() as looked:
        release = threading.Thread(target=lambda: (looked.over.wait(), lock.release()))
        release.start()
        looked.begun.set()
        lock.acquire()
        release.join()
    (sample,) = looked.samples
    assert sample.called == "lock.acquire"
    assert sample.main[-1].own
    assert sample.main[-1].function == "test_the_users_line_and_what_it_calls_are_told"
    assert not sample.moved
    assert sample.condition.state in ("S", "R")
    assert any(name.startswith("Thread") for name, _ in sample.others)


def test_a_call_that_lasts_is_fresh_once_and_another_of_the_same_line_is_fresh_again():
    fresh = []
    for _ in range(2):
        with Looked(3) as looked:
            looked.begun.set()
            looked.over.wait()
        fresh += [sample.fresh for sample in looked.samples]
    assert fresh == [True, False, False] * 2


def test_a_loop_has_moved_though_it_is_always_in_the_same_call():
    with Looked() as looked:
        looked.begun.set()
        while not looked.over.is_set():
            looked.over.wait(0.015)
    assert looked.samples[0].moved


def calls():
    time.sleep(0)
    Path("x").joinpath("y").name.upper()


@pytest.mark.parametrize(
    ("line", "names"), [(1, ["time.sleep"]), (2, ["Path", "Path.joinpath", "Path.joinpath.name.upper"])]
)
def test_the_name_of_what_is_called_is_read_from_the_bytecode(line, names):
    import dis

    code = calls.__code__
    found = [
        called(code, i.offset)
        for i in dis.get_instructions(code)
        if i.opname.startswith("CALL") and i.positions.lineno == code.co_firstlineno + line
    ]
    assert found == names


def test_what_is_not_a_call_has_no_name():
    assert called(calls.__code__, 0) == ""


def test_files_of_the_user_are_told_from_libraries():
    import msgspec

    assert is_library(threading.__file__)
    assert is_library(msgspec.__file__)
    assert is_library("<frozen importlib._bootstrap>")
    assert not is_library(__file__)
