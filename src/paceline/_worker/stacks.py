"""What the threads of this worker are doing, seen from the thread that listens to the driver.

Nothing is stopped or traced for it. The main thread may be stuck for ever; where it keeps the GIL there is no answer,
and that is an answer too.
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
from paceline._core.frames import is_library, shown_name, shown_path
from paceline._engine.messages import Frame, Sampled

LOOKS = 5
_APART_S = 0.02
"""Looking once cannot tell a loop from a standstill; a loop is seldom at one place five times."""
_MOST_FRAMES = 100


def sampled(attempt: int, rank: int, number: int) -> Sampled:
    """Look at the main thread for a tenth of a second, and at all threads at its end."""
    places = set()
    fresh = []
    for look in range(LOOKS):
        if look:
            time.sleep(_APART_S)
        stack = _of_the_job(_stack(sys._current_frames().get(threading.main_thread().ident or 0)))
        places.add(tuple((frame.f_code, frame.f_lasti) for frame in stack))
        fresh.append(_first_seen(stack))
    main = stack
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    others = []
    for ident, innermost in sys._current_frames().items():
        if ident not in (threading.main_thread().ident, threading.get_ident()):
            others.append((shown_name(names.get(ident, f"thread {ident}")), _told(_stack(innermost))))
    return Sampled(
        attempt,
        rank,
        number,
        main=_told(main),
        called=called(main[-1].f_code, main[-1].f_lasti) if main else "",
        moved=len(places) > 1 or any(fresh[1:]),
        fresh=fresh[0],
        others=tuple(others),
        condition=system.condition(os.getpid()) or system.Condition(cpu_s=time.process_time()),
    )


def _stack(innermost: FrameType | None) -> list[FrameType]:
    stack: list[FrameType] = []
    while innermost is not None and len(stack) < _MOST_FRAMES:
        stack.append(innermost)
        innermost = innermost.f_back
    return stack[::-1]


def _of_the_job(stack: list[FrameType]) -> list[FrameType]:
    """Without the calls by which a process becomes a worker."""
    for at, frame in enumerate(stack):
        if frame.f_code.co_name == "work" and frame.f_globals.get("__name__") == "paceline._worker.main":
            return stack[at:]
    return stack


def _told(stack: list[FrameType]) -> tuple[Frame, ...]:
    frames = []
    for frame in stack:
        code = frame.f_code
        module = frame.f_globals.get("__name__")
        where = f"{shown_path(code.co_filename)}:{frame.f_lineno}"
        frames.append(Frame(str(module), shown_name(code.co_name), where, not is_library(code.co_filename)))
    return tuple(frames)


def _first_seen(stack: list[FrameType]) -> bool:
    """Whether the call that the user's code is in was never seen before.

    A frame can be neither kept, since it would keep all its variables, nor known by its address, which is used again.
    So it is marked: with a flag of tracing that means nothing where nobody traces.
    """
    call = None
    for frame in reversed(stack):
        if not is_library(frame.f_code.co_filename):
            break
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:  # which lives on from one item to the next
            call = frame
    if call is None or call.f_trace is not None:
        return False
    seen, call.f_trace_opcodes = call.f_trace_opcodes, True
    return not seen


@functools.lru_cache(maxsize=256)
def called(code: CodeType, at: int) -> str:
    """What is called at an instruction, as it is written: `time.sleep`. Empty where it is no call by name.

    Read from the bytecode: the source may lie on storage that does not answer.
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
