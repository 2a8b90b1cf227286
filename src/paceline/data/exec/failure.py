"""Sends an exception from the process that raised it to the process that must report it."""

from __future__ import annotations

import pickle
import traceback

import cloudpickle
import msgspec

from paceline._core.errors import DataError
from paceline._core.frames import user_frames

_MAX_TEXT = 100_000
_MAX_PICKLE = 1 << 20


class DataFailure(msgspec.Struct, frozen=True):
    """An exception described in JSON; the exception itself follows as a pickle where possible."""

    unit: str
    summary: str
    frames: tuple[str, ...] = ()
    traceback: str = ""

    def to_exception(self, pickled: bytes) -> BaseException:
        """The exception to raise: the original, or a substitute."""
        found = _load_exception(pickled)
        if found is None:
            where = f" ({self.frames[-1]})" if self.frames else ""
            found = DataError(f"{self.unit}: {self.summary}{where}" if self.unit else self.summary)
        elif self.unit:
            found.add_note(f"while working on {self.unit}")
        if self.traceback:
            found.add_note(f"\nIn the process that it happened in:\n{self.traceback.rstrip()}")
        return found


def _load_exception(pickled: bytes) -> BaseException | None:
    """None if there is no pickle, or if its class cannot be imported in this process."""
    if not pickled:
        return None
    try:
        found = pickle.loads(pickled)  # noqa: S301  from one of our processes, over a private socket
    except Exception:  # noqa: BLE001  its text is reported instead
        return None
    return found if isinstance(found, BaseException) else None


def capture_failure(error: BaseException, unit: str) -> tuple[DataFailure, bytes]:
    said = f"{type(error).__name__}: {_error_text(error)}"
    shown = "".join(traceback.format_exception(error))
    return DataFailure(unit, said, user_frames(error), shown[-_MAX_TEXT:]), _pickle_exception(error)


def _error_text(error: BaseException) -> str:
    try:
        return str(error)[:_MAX_TEXT]
    except Exception as problem:  # noqa: BLE001  the user's own __str__ raises; report that instead
        return f"<its message cannot be shown: {type(problem).__name__}>"


def _pickle_exception(error: BaseException) -> bytes:
    """Empty if the exception does not survive a pickle round trip."""
    try:
        data: bytes = cloudpickle.dumps(error)
        if not isinstance(cloudpickle.loads(data), type(error)):
            return b""
    except Exception:  # noqa: BLE001  its class may raise anything; the text is sent as well
        return b""
    return data if len(data) <= _MAX_PICKLE else b""
