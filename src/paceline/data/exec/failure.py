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
    """A description of an exception, and the exception itself where it survives a pickle round trip."""

    unit: str
    summary: str
    frames: tuple[str, ...] = ()
    traceback: str = ""
    pickled: bytes = b""

    def to_exception(self) -> BaseException:
        """The exception to raise: the original, or a substitute."""
        error = _load_exception(self.pickled)
        if error is None:
            frame = f" ({self.frames[-1]})" if self.frames else ""
            error = DataError(f"{self.unit}: {self.summary}{frame}" if self.unit else self.summary)
        elif self.unit:
            error.add_note(f"while working on {self.unit}")
        if self.traceback:
            error.add_note(f"\nTraceback in the process that failed:\n{self.traceback.rstrip()}")
        return error


def _load_exception(pickled: bytes) -> BaseException | None:
    """None if there is no pickle, or if its class cannot be imported in this process."""
    if not pickled:
        return None
    try:
        error = pickle.loads(pickled)  # noqa: S301
    except Exception:  # noqa: BLE001
        return None
    return error if isinstance(error, BaseException) else None


def capture_failure(error: BaseException, unit: str = "") -> DataFailure:
    summary = f"{type(error).__name__}: {_error_text(error)}"
    text = "".join(traceback.format_exception(error))[-_MAX_TEXT:]
    return DataFailure(unit, summary, user_frames(error), text, _pickle_exception(error))


def _error_text(error: BaseException) -> str:
    try:
        return str(error)[:_MAX_TEXT]
    except Exception as problem:  # noqa: BLE001
        return f"<its __str__ raised {type(problem).__name__}>"


def _pickle_exception(error: BaseException) -> bytes:
    """Empty if the exception does not survive a pickle round trip."""
    try:
        data: bytes = cloudpickle.dumps(error)
        if not isinstance(cloudpickle.loads(data), type(error)):
            return b""
    except Exception:  # noqa: BLE001
        return b""
    return data if len(data) <= _MAX_PICKLE else b""
