"""Samples what the threads of this process are doing, from another thread: in workers and data processes.

Nothing is stopped or traced. The main thread may be stuck forever; if it holds the GIL there is no answer, and that is
an answer too.
"""

from __future__ import annotations

import dis
import functools
import inspect
import os
import sys
import threading
import time
from types import CodeType, FrameType

from paceline._core import system
from paceline._core.frames import capture_stack, display_name, display_path, is_library_file
from paceline._engine.messages import StackFrame, StacksSampled

NUM_LOOKS = 5
_LOOK_INTERVAL_S = 0.02
"""One sample cannot distinguish a loop from a standstill; a loop is rarely at one place five times."""
_MAX_FRAMES = 100
_JOB_ENTRIES = (("paceline._worker.main", "work"), ("paceline.data.exec.process", "_run_work"))


def sample_stacks(attempt: int, rank: int, number: int) -> StacksSampled:
    """Sample the main thread for a tenth of a second, and all threads at the end."""
    places = set()
    is_new = []
    for look in range(NUM_LOOKS):
        if look:
            time.sleep(_LOOK_INTERVAL_S)
        stack = _trim_to_job(_read_stack(threading.main_thread().ident or 0))
        places.add(tuple((frame.f_code, frame.f_lasti) for frame in stack))
        is_new.append(_is_first_seen(stack))
    main = stack
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    others = []
    for ident in sys._current_frames():
        if ident not in (threading.main_thread().ident, threading.get_ident()):
            others.append((display_name(names.get(ident, f"thread {ident}")), _to_frames(_read_stack(ident))))
    return StacksSampled(
        attempt,
        rank,
        number,
        main=_to_frames(main),
        called=find_called_name(main[-1].f_code, main[-1].f_lasti) if main else "",
        has_moved=len(places) > 1 or any(is_new[1:]),
        is_new_call=is_new[0],
        others=tuple(others),
        process_status=system.read_process_status(os.getpid()) or system.ProcessStatus(cpu_s=time.process_time()),
    )


def _read_stack(ident: int) -> list[FrameType]:
    return capture_stack(ident, _MAX_FRAMES)[::-1]


def _trim_to_job(stack: list[FrameType]) -> list[FrameType]:
    """Drop our frames that start a worker or a data process."""
    for at, frame in enumerate(stack):
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) in _JOB_ENTRIES:
            return stack[at:]
    return stack


def _to_frames(stack: list[FrameType]) -> tuple[StackFrame, ...]:
    frames = []
    for frame in stack:
        code = frame.f_code
        module = frame.f_globals.get("__name__")
        where = f"{display_path(code.co_filename)}:{frame.f_lineno}"
        frames.append(StackFrame(str(module), display_name(code.co_name), where, not is_library_file(code.co_filename)))
    return tuple(frames)


def _is_first_seen(stack: list[FrameType]) -> bool:
    """Whether the current call of the user's code was never seen before.

    A frame can be neither kept, which would keep all its variables alive, nor identified by its address, which is
    reused. So it is marked with a tracing flag that has no effect while nobody traces.
    """
    call = None
    for frame in reversed(stack):
        if not is_library_file(frame.f_code.co_filename):
            break
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:  # which survives from one item to the next
            call = frame
    if call is None or call.f_trace is not None:
        return False
    was_marked, call.f_trace_opcodes = call.f_trace_opcodes, True
    return not was_marked


@functools.lru_cache(maxsize=256)
def find_called_name(code: CodeType, at: int) -> str:
    """The name that is called at an instruction, as written: `time.sleep`. Empty if it is not a call by name.

    Read from the bytecode: the source may be on storage that does not answer.
    """
    instructions = list(dis.get_instructions(code))
    call = next((i for i in instructions if i.offset == at), None)
    if call is None or not call.opname.startswith(("CALL", "PRECALL")) or call.positions is None:
        return ""
    start = call.positions.lineno, call.positions.col_offset
    names = []
    for instruction in instructions:
        if instruction.offset >= at:
            break
        positions = instruction.positions
        if positions is not None and (positions.lineno, positions.col_offset) == start:
            if instruction.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF")):
                names = [str(instruction.argval)]
            elif instruction.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")):
                names.append(str(instruction.argval))
    return ".".join(names)
