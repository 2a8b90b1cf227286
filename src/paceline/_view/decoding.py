"""Lines of a journal, many at once: the checksum of every line is checked, and of reports only what is shown is read.

Nothing here is a loop over lines in Python where the standard library or msgspec has one of its own: a million reports
take about a second. Where there are many, msgspec is told the names of the metrics beforehand, which spares it a dict
for each report; lines for which that does not fit are decoded without.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, get_args

import msgspec
from msgspec import UNSET, UnsetType

from paceline._control.events import Event
from paceline._core.codec import valid_lines

_MANY = 1 << 16
"""Bytes from which on it is worth the while to make a decoder for certain names."""
_MOST_NAMES = 100

ABSENT = msgspec.Raw()


class Line(Protocol):
    """What of a report is shown."""

    attempt: int
    rank: int
    seq: int
    at: float
    data: msgspec.Raw
    """`ABSENT` where it has none."""
    metrics: Any
    """A dict; or, of lines that have `names`, an object with the attributes `m0`, `m1` and so on."""


class AnyLine(msgspec.Struct, gc=False):
    """Of other events than reports only the type is looked at."""

    type: str
    attempt: int = 0
    rank: int = 0
    seq: int = 0
    metrics: dict[str, Any] | None = None
    at: float = 0.0
    checkpoint: str | None = None
    reduce: msgspec.Raw = ABSENT
    data: msgspec.Raw = ABSENT


@dataclass(frozen=True)
class Lines:
    payloads: Sequence[bytes]
    lines: Sequence[Any]
    special: Sequence[int]
    """In order, the places of those that are more than a report of metrics: `lines` may have anything there."""
    num_bytes: int
    """Of all that were valid; what follows is torn or altered, and is not to be trusted."""
    names: tuple[str, ...] | None = None
    """Of metrics, where lines have them as attributes."""


def decoded(data: bytes, names: Iterable[str] = ()) -> Lines:
    """Whole lines, up to the first that is torn or altered. `names`: of metrics that there were so far."""
    payloads = _sealed(data)
    num_bytes = len(data)
    if payloads is None:
        payloads = list(valid_lines(line + b"\n" for line in data.split(b"\n")[:-1]))
        num_bytes = sum(map(len, payloads)) + 10 * len(payloads)
    if not payloads:
        return Lines((), (), (), num_bytes)
    joined = b"\n".join(payloads)
    if len(joined) >= _MANY and (found := _by_name(payloads, joined, names, num_bytes)) is not None:
        return found
    lines: list[Any]
    try:
        lines = _decoder.decode_lines(joined)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        lines = []
    if len(lines) != len(payloads):  # One is not understood, or empty.
        lines = [_one(payload) for payload in payloads]
    special = [at for at, line in enumerate(lines) if line is None or not _is_plain(line)]
    return Lines(payloads, lines, special, num_bytes)


_decoder = msgspec.json.Decoder(AnyLine)


def _is_plain(line: AnyLine) -> bool:
    """A report that does nothing but tell metrics of its own."""
    return line.type == "Reported" and line.metrics is not None and line.checkpoint is None and line.reduce is ABSENT


def _one(payload: bytes) -> AnyLine | None:
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def _sealed(data: bytes) -> list[bytes] | None:
    """The payloads of all lines; None where one does not check out."""
    lines = data.split(b"\n")
    if lines.pop():
        return None
    heads = b"".join([line[:9] for line in lines])
    if heads[8::9] != b" " * len(lines):
        return None
    try:
        claimed = array("I", bytes.fromhex(heads.decode("ascii")))
    except ValueError:
        return None
    if sys.byteorder == "little":
        claimed.byteswap()
    payloads = [line[9:] for line in lines]
    return payloads if claimed == array("I", map(zlib.crc32, payloads)) else None


def _by_name(payloads: list[bytes], joined: bytes, names: Iterable[str], num_bytes: int) -> Lines | None:
    first = next((line for line in map(_one, payloads[:1000]) if line is not None and _is_plain(line)), None)
    if first is None or first.metrics is None:
        return None
    known = tuple(dict.fromkeys((*names, *first.metrics)))
    if not 0 < len(known) <= _MOST_NAMES:
        return None
    try:
        kind, decoder = _made_for(known)  # Fails for names with quotes and the like: they are read in the other way.
        lines = decoder.decode_lines(joined)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    if len(lines) != len(payloads):
        return None
    special = [
        at
        for at, line in enumerate(lines)
        if type(line) is not kind or line.checkpoint is not None or line.reduce is not ABSENT
    ]
    return Lines(payloads, lines, special, num_bytes, known)


@lru_cache(maxsize=64)
def _made_for(names: tuple[str, ...]) -> tuple[type[Any], Any]:
    """The type of reports with these metrics, all of them numbers, and a decoder of them and of all other events."""
    fields = [(f"m{at}", int | float | UnsetType, UNSET) for at in range(len(names))]
    metrics = msgspec.defstruct(
        "Metrics",
        fields,
        rename={f"m{at}": name for at, name in enumerate(names)},
        forbid_unknown_fields=True,
        gc=False,
    )
    report = msgspec.defstruct(
        "ReportLine",
        [
            ("attempt", int),
            ("rank", int),
            ("seq", int),
            ("metrics", metrics),
            ("at", float),
            ("checkpoint", str | None, None),
            ("reduce", msgspec.Raw, ABSENT),
            ("data", msgspec.Raw, ABSENT),
        ],
        tag="Reported",
        gc=False,
    )
    kinds: Any = report
    for event in get_args(Event):
        if event.__name__ != "Reported":
            kinds |= msgspec.defstruct(f"Other{event.__name__}", [], tag=event.__name__, gc=False)
    return report, msgspec.json.Decoder(kinds)
