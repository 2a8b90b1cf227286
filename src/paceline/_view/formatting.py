"""Formats times, sizes, numbers, counts and sparklines for people. Pure, with cheap imports only.

Text in journals and logs is untrusted: `escape_unprintable` makes it one line without terminal control sequences.
"""

from __future__ import annotations

import math
import time
import unicodedata
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

UNKNOWN = "?"
_UNITS = ("B", "KB", "MB", "GB", "TB", "PB", "EB")
_INT_DIGITS = 15
"""An integer with more digits is written like any other large number."""
_TEXT_WIDTH = 40


def duration(seconds: float | None) -> str:
    """`0.4 s`, `3 s`, `4:07`, `2 h 03 min`, `3 d 04 h`; a negative duration counts as 0."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 0.95:
        return f"{seconds:.1f} s" if seconds >= 0.05 else "0 s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24:02d} h"


def short_duration(seconds: float) -> str:
    """`0.42 ms`, `13 ms`, `1.3 s`, and from ten seconds on like `duration`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)


def size(num_bytes: float | None) -> str:
    """`512 B`, `1.5 KB`, `24 MB`: three digits, in steps of 1000."""
    if num_bytes is None or not math.isfinite(num_bytes):
        return UNKNOWN
    amount, unit = float(num_bytes), 0
    while abs(amount) >= 999.5 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    whole = unit == 0 or abs(amount) >= 9.95
    return f"{amount:.0f} {_UNITS[unit]}" if whole else f"{amount:.1f} {_UNITS[unit]}"


def number(value: float | None) -> str:
    """Four digits, `nan`, `inf`; an integer in full."""
    if value is None:
        return UNKNOWN
    if isinstance(value, int):
        if value.bit_length() <= 3 * _INT_DIGITS:
            return str(value)
        return f"{value:.4g}" if value.bit_length() < 1000 else f"about 2**{value.bit_length()}"
    return f"{value:.4g}"


def value(value: object, width: int = _TEXT_WIDTH) -> str:
    """Format any reported or configured value on one line of limited length."""
    if isinstance(value, int | float):
        return number(value)
    return truncate(escape_unprintable(value if isinstance(value, str) else repr(value)), width)


def values(named: Mapping[str, Any]) -> str:
    """`loss=0.1235, acc=0.9`."""
    return ", ".join(f"{escape_unprintable(name)}={value(of)}" for name, of in named.items())


def age(seconds: float) -> str:
    """How long ago something was."""
    return "just now" if seconds < 0.95 else f"{duration(seconds)} ago"


def when(at: float, now: float | None = None) -> str:
    """Format a time since the epoch in local time; without the date if it is today."""
    try:
        then, today = time.localtime(at), time.localtime(now)
    except (ValueError, OverflowError, OSError):
        return UNKNOWN
    if then[:3] == today[:3]:
        return time.strftime("%H:%M:%S", then)
    return time.strftime("%Y-%m-%d %H:%M", then)


def rate(per_s: float, noun: str) -> str:
    """`12 steps/s`, or `7.5 s a step` if it is slow."""
    if not math.isfinite(per_s) or per_s <= 0:
        return f"{UNKNOWN} {noun}s/s" if per_s != 0 else f"0 {noun}s/s"
    if per_s >= 0.5:
        return f"{f'{per_s:.0f}' if per_s >= 99.5 else f'{per_s:.2g}'} {noun}s/s"
    seconds = 1 / per_s
    article = "an" if noun[:1] in "aeiou" else "a"
    return f"{f'{seconds:.1f} s' if seconds < 9.95 else duration(seconds)} {article} {noun}"


def format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def truncate(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def display_width(text: str) -> int:
    """Return the number of terminal columns a text takes."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)


def cut_to_width(text: str, width: int) -> str:
    """Return the longest start of a text that takes at most `width` columns."""
    if text.isascii():
        return text[: max(0, width)]
    used = 0
    for at, character in enumerate(text):
        used += display_width(character)
        if used > width:
            return text[:at]
    return text


def first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def escape_unprintable(text: str) -> str:
    """Return one line with unprintable characters escaped: nothing in it can control a terminal."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape_character(character) for character in " ".join(text.split()))


def _escape_character(character: str) -> str:
    # Controls, text directions, surrogates and line separators. Combining marks and all other characters stay.
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        if character.isascii():
            return f"\\x{ord(character):02x}"
        return character.encode("ascii", "backslashreplace").decode()
    return character


BLOCKS = "▁▂▃▄▅▆▇█"
GAP = " "


def sparkline(values: Iterable[float | None], width: int) -> str:
    """Draw the last `width` values, one character each, scaled from their minimum to their maximum.

    A value that is not a finite number is a gap. Equal values are a line in the middle.
    """
    if width < 1:
        return ""
    last = [*islice(reversed([*values]), width)][::-1]
    finite = [value for value in last if value is not None and math.isfinite(value)]
    if not finite:
        return GAP * len(last)
    low, high = min(finite), max(finite)
    return "".join(_block(value, low, high) if value is not None and math.isfinite(value) else GAP for value in last)


def _block(value: float, low: float, high: float) -> str:
    # Halved, since the full difference may be more than a float can hold.
    span = high / 2 - low / 2
    if span <= 0:
        return BLOCKS[len(BLOCKS) // 2 - 1]
    share = (value / 2 - low / 2) / span
    return BLOCKS[min(len(BLOCKS) - 1, max(0, int(share * len(BLOCKS))))]
