"""Finds the user's own code on a stack: the frames of an exception, and the line of a call."""

import gc
import inspect
import os
import sys
import threading
import traceback
import warnings
from itertools import accumulate, chain, islice, repeat
from operator import itemgetter
from pathlib import Path
from types import CodeType, FrameType, TracebackType

from paceline._core.plain_values import to_printable

_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_STANDARD_LIBRARY = os.path.dirname(inspect.__file__) + os.sep


def is_library_file(filename: str) -> bool:
    """Whether a source file is not the user's: it belongs to Paceline, an installed package or Python."""
    if filename.startswith((_PACKAGE, "<frozen", _STANDARD_LIBRARY)):
        return True
    return f"{os.sep}site-packages{os.sep}" in filename


def display_path(filename: str) -> str:
    """The path of a source file as a person in this directory would write it."""
    try:
        path = filename if filename.startswith("<") else os.path.relpath(filename)
    except FileNotFoundError:  # The current directory has been removed.
        path = filename
    return to_printable(filename if path.startswith("..") else path)


def trim_to_user_code(full: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame that is not ours: how we called the user's function is irrelevant."""
    first = full
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        first = first.tb_next
    return first if first is not None else full


def display_name(name: str) -> str:
    """The name of a function or thread on one line, without control characters for the terminal."""
    if name.isprintable():
        return name
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in name)


def user_frames(error: BaseException) -> tuple[str, ...]:
    """The frames of an exception in the user's own files, as `train.py:41 in train_fn`, innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    user_code = [frame for frame in frames if not is_library_file(frame.filename)]
    return tuple(f"{display_path(frame.filename)}:{frame.lineno} in {frame.name}" for frame in user_code or frames[-1:])


_display_paths: dict[CodeType, str] = {}


def call_site() -> str:
    """The current line of the user's code: the innermost frame that is not ours, as `train.py:41`."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    path = _display_paths.get(frame.f_code)
    if path is None:
        path = _display_paths[frame.f_code] = display_path(frame.f_code.co_filename)
    return f"{path}:{frame.f_lineno}"


def find_caller() -> tuple[FrameType, int]:
    """The innermost frame whose code is not ours, and how many frames it is above the function that asks."""
    frame, depth = sys._getframe(1), 0
    while frame.f_globals.get("__name__", "").startswith("paceline.") and frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    return frame, depth


def warn_caller(message: str) -> None:
    """Warn about the line of the user's code that led here."""
    warnings.warn(message, UserWarning, stacklevel=find_caller()[1] + 1)


def capture_stack(ident: int, max_frames: int = 200) -> list[FrameType]:
    """The frames of a thread, innermost first; empty if the thread has ended.

    All in one call of C code that keeps the GIL, and without garbage collection, whose finalizers could release it. If
    the thread ran meanwhile, `f_back` would read memory that something else uses by now (Python 3.11): often a crash.
    """
    frames: list[FrameType] = []
    innermost = map(itemgetter(ident), islice(iter(sys._current_frames, None), 1))
    collects = gc.isenabled()
    gc.disable()
    try:
        frames.extend(accumulate(chain(innermost, repeat("f_back", max_frames - 1)), getattr))
    except (AttributeError, KeyError):  # The outermost frame's `f_back` is None, which has none; or no such thread.
        pass
    finally:
        if collects:
            gc.enable()
    return [frame for frame in frames if frame is not None]


def thread_site(thread: threading.Thread) -> str:
    """The line of the user's code that a thread is at, as `train.py:41`; empty if there is none."""
    for frame in capture_stack(thread.ident or 0):
        if not is_library_file(frame.f_code.co_filename):
            return f"{display_path(frame.f_code.co_filename)}:{frame.f_lineno}"
    return ""
