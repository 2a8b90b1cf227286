"""`capture_stack` of a thread that runs: generators that are suspended meanwhile must not confuse it."""

import sys
import threading
from types import FrameType

from paceline._core.frames import capture_stack


def test_the_stack_of_a_busy_thread_is_whole_each_time():
    ending, started = threading.Event(), threading.Event()

    def count(depth):
        if depth:
            yield from count(depth - 1)
        yield depth

    def work_busily():
        started.set()
        while not ending.is_set():
            sum(count(8))

    thread = threading.Thread(target=work_busily)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        started.wait()
        for _ in range(3_000):
            frames = capture_stack(thread.ident or 0)
            assert all(isinstance(frame, FrameType) for frame in frames)
            assert "work_busily" in [frame.f_code.co_name for frame in frames]
    finally:
        ending.set()
        sys.setswitchinterval(before)
        thread.join()
    assert capture_stack(thread.ident or 0) == []


def test_a_stack_is_innermost_first_and_can_be_limited():
    names = [frame.f_code.co_name for frame in capture_stack(threading.get_ident())]
    assert names[:2] == ["capture_stack", "test_a_stack_is_innermost_first_and_can_be_limited"]
    assert len(capture_stack(threading.get_ident(), 3)) == 3
