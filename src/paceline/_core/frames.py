"""Whose line of code it is: the frames of an exception that a user would look at."""

import inspect
import os
import traceback
from pathlib import Path
from types import TracebackType

from paceline._core.plain import printable

_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_STANDARD_LIBRARY = os.path.dirname(inspect.__file__) + os.sep


def is_library(filename: str) -> bool:
    """Whether a source file is somebody else's: ours, an installed package's or Python's own."""
    if filename.startswith((_PACKAGE, "<frozen", _STANDARD_LIBRARY)):
        return True
    return f"{os.sep}site-packages{os.sep}" in filename


def shown_path(filename: str) -> str:
    """A source file as a person in this directory would name it."""
    try:
        path = filename if filename.startswith("<") else os.path.relpath(filename)
    except FileNotFoundError:  # The directory that we are in has been removed.
        path = filename
    return printable(filename if path.startswith("..") else path)


def from_users_code(traced: TracebackType | None) -> TracebackType | None:
    """The same from the first frame on that is not ours: how the user's function was come to is nobody's concern."""
    found = traced
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        found = found.tb_next
    return found if found is not None else traced


def shown_name(name: str) -> str:
    """Of a function or a thread, on one line and with nothing in it that a terminal would act upon."""
    if name.isprintable():
        return name
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in name)


def user_frames(error: BaseException) -> tuple[str, ...]:
    """The frames of an exception that lie in the user's own files, as `train.py:41 in train_fn`, innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not is_library(frame.filename)]
    return tuple(f"{shown_path(frame.filename)}:{frame.lineno} in {frame.name}" for frame in own or frames[-1:])
