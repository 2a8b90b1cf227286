"""What a worker says of its own threads."""

import dis
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from paceline._core.frames import is_library_file
from paceline._engine import stacks
from paceline._engine.stacks import find_called_name, sample_stacks


class Looked:
    """Looks at the main thread from another one, once that is inside a call of this name."""

    def __init__(self, name, num_looks=1):
        self.samples = []
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(name, num_looks))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self._thread.join()

    def _look(self, name, num_looks):
        while self._called_by_test() != name and not self.over.is_set():
            time.sleep(0.001)
        self.samples += [sample_stacks(1, 0, number) for number in range(num_looks)]
        self.over.set()

    def _called_by_test(self):
        frame, callee = sys._current_frames()[threading.main_thread().ident], None
        while frame.f_code.co_filename != __file__:
            frame, callee = frame.f_back, frame
        return callee.f_code.co_name if callee is not None else find_called_name(frame.f_code, frame.f_lasti)


def test_the_users_line_and_what_it_calls_are_told():
    lock = threading.Lock()
    lock.acquire()
    with Looked("waiting.acquire") as looked:
        release = threading.Thread(target=lambda: (looked.over.wait(), lock.release()))
        release.start()
        waiting = lock
        waiting.acquire()
        release.join()
    (sample,) = looked.samples
    assert sample.called == "waiting.acquire"
    assert sample.main[-1].is_user_code
    assert sample.main[-1].function == "test_the_users_line_and_what_it_calls_are_told"
    assert not sample.has_moved
    assert sample.process_status.state in ("S", "R")
    assert any(name.startswith("Thread") for name, _ in sample.others)


def test_a_call_that_lasts_is_fresh_once_and_another_of_the_same_line_is_fresh_again():
    fresh = []
    for _ in range(2):
        with Looked("wait", 3) as looked:
            looked.over.wait()
        fresh += [sample.is_new_call for sample in looked.samples]
    assert fresh == [True, False, False] * 2


def test_a_loop_has_moved_though_it_is_always_in_the_same_call(monkeypatch):
    num_turns = 0

    def sleep_until_the_loop_has_turned(_):
        before = num_turns
        while num_turns == before:
            time.sleep(0.001)

    patched = SimpleNamespace(sleep=sleep_until_the_loop_has_turned, process_time=time.process_time)
    monkeypatch.setattr(stacks, "time", patched)
    with Looked("wait") as looked:
        while not looked.over.is_set():
            num_turns += 1
            looked.over.wait(0.005)
    assert looked.samples[0].has_moved


def calls():
    time.sleep(0)
    Path("x").joinpath("y").name.upper()


@pytest.mark.parametrize(
    ("line", "names"), [(1, ["time.sleep"]), (2, ["Path", "Path.joinpath", "Path.joinpath.name.upper"])]
)
def test_the_name_of_what_is_called_is_read_from_the_bytecode(line, names):
    code = calls.__code__
    names_found = [
        find_called_name(code, i.offset)
        for i in dis.get_instructions(code)
        if i.opname.startswith("CALL") and i.positions.lineno == code.co_firstlineno + line
    ]
    assert names_found == names
    assert find_called_name(code, 0) == "", "what is not a call has no name"


def test_files_of_the_user_are_told_from_libraries():
    assert is_library_file(threading.__file__)
    assert is_library_file(msgspec.__file__)
    assert is_library_file("<frozen importlib._bootstrap>")
    assert not is_library_file(__file__)
