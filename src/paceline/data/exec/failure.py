"""An exception on its way from the process that it was raised in to the one that is to know of it."""

from __future__ import annotations

import pickle
import traceback

import cloudpickle
import msgspec

from paceline._core.errors import DataError
from paceline._core.frames import user_frames

_MAX_TEXT = 100_000
_MAX_PICKLE = 1 << 20


class Failure(msgspec.Struct, frozen=True):
    """What is told of an exception in JSON; the exception itself goes along as a pickle, where it can."""

    unit: str
    said: str
    frames: tuple[str, ...] = ()
    traceback: str = ""

    def error(self, pickled: bytes) -> BaseException:
        """What to raise: the exception itself, or what stands in for it."""
        found = _loaded(pickled)
        if found is None:
            where = f" ({self.frames[-1]})" if self.frames else ""
            found = DataError(f"{self.unit}: {self.said}{where}" if self.unit else self.said)
        elif self.unit:
            found.add_note(f"while working on {self.unit}")
        if self.traceback:
            found.add_note(f"\nIn the process that it happened in:\n{self.traceback.rstrip()}")
        return found


def _loaded(pickled: bytes) -> BaseException | None:
    """None where there is nothing, or where its class cannot be found in this process."""
    if not pickled:
        return None
    try:
        found = pickle.loads(pickled)  # noqa: S301  from a process of ours, over a private socket
    except Exception:  # noqa: BLE001  the text of it is told in its place
        return None
    return found if isinstance(found, BaseException) else None


def failure(error: BaseException, unit: str) -> tuple[Failure, bytes]:
    said = f"{type(error).__name__}: {_text(error)}"
    shown = "".join(traceback.format_exception(error))
    return Failure(unit, said, user_frames(error), shown[-_MAX_TEXT:]), _pickled(error)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_MAX_TEXT]
    except Exception as problem:  # noqa: BLE001  the user's own __str__ raises; say so in its place
        return f"<its message cannot be shown: {type(problem).__name__}>"


def _pickled(error: BaseException) -> bytes:
    """Nothing where the exception does not survive the journey."""
    try:
        data: bytes = cloudpickle.dumps(error)
        if not isinstance(cloudpickle.loads(data), type(error)):
            return b""
    except Exception:  # noqa: BLE001  its class may raise anything; the text of it is sent besides
        return b""
    return data if len(data) <= _MAX_PICKLE else b""
