"""Finds the frames of an exception that are the user's own code."""

import inspect
import os
import traceback
from pathlib import Path
from types import TracebackType

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


def trim_to_user_code(traced: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame that is not ours: how we called the user's function is irrelevant."""
    found = traced
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        found = found.tb_next
    return found if found is not None else traced


def display_name(name: str) -> str:
    """The name of a function or thread on one line, without control characters for the terminal."""
    if name.isprintable():
        return name
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in name)


def user_frames(error: BaseException) -> tuple[str, ...]:
    """The frames of an exception in the user's own files, as `train.py:41 in train_fn`, innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_library_file(frame.filename)]
    return tuple(f"{display_path(frame.filename)}:{frame.lineno} in {frame.name}" for frame in own or frames[-1:])
