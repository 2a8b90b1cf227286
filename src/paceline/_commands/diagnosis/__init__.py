"""The checks of `paceline doctor`, one module per area. Each has a `check_...` function that yields lines."""

from typing import Literal

import msgspec

Status = Literal["ok", "warn", "fail"]


class DiagnosisLine(msgspec.Struct, frozen=True):
    about: str
    """The area of the check: `packages`, `machine` and so on."""
    name: str
    status: Status
    text: str
    hint: str = ""
    """What to do about it. Lines with status ok may also have a hint, about something optional."""


def format_size(num_bytes: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if num_bytes < 1000 or unit == "TB":
            break
        num_bytes /= 1000
    return f"{num_bytes:.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"


def format_duration(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
