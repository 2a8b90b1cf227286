"""Decodes many journal lines at once: verifies the checksum of every line, and reads only the shown part of reports.

Avoids Python loops over lines where the standard library or msgspec has its own: a million reports take about a second.
For large inputs, msgspec gets the names of the metrics beforehand, which saves a dict per report; lines that do not fit
are decoded without.
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

_MIN_TYPED_BYTES = 1 << 16
"""From this many bytes on, a decoder for specific metric names pays."""
_MAX_TYPED_NAMES = 100

ABSENT = msgspec.Raw()


class ReportLine(Protocol):
    """The part of a report that is shown."""

    attempt: int
    rank: int
    seq: int
    at: float
    data: msgspec.Raw
    """`ABSENT` if there is none."""
    metrics: Any
    """A dict; if the lines have `names`, an object with the attributes `m0`, `m1` and so on."""


class EventLine(msgspec.Struct, gc=False):
    """Any event that is not a report: only the type is read."""

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
class JournalLines:
    payloads: Sequence[bytes]
    lines: Sequence[Any]
    special: Sequence[int]
    """Sorted indices of the events that are more than plain reports of metrics: `lines` may have anything there."""
    num_bytes: int
    """Size of all valid lines; what follows is torn or altered, and is not trusted."""
    names: tuple[str, ...] | None = None
    """Names of the metrics, if lines hold them as attributes."""


def decode_journal_lines(data: bytes, names: Iterable[str] = ()) -> JournalLines:
    """Decode whole lines up to the first that is torn or altered. `names`: the metrics known so far."""
    payloads = _check_lines(data)
    num_bytes = len(data)
    if payloads is None:
        payloads = list(valid_lines(line + b"\n" for line in data.split(b"\n")[:-1]))
        num_bytes = sum(map(len, payloads)) + 10 * len(payloads)
    if not payloads:
        return JournalLines((), (), (), num_bytes)
    joined = b"\n".join(payloads)
    if len(joined) >= _MIN_TYPED_BYTES and (decoded := _decode_by_name(payloads, joined, names, num_bytes)) is not None:
        return decoded
    lines: list[Any]
    try:
        lines = _decoder.decode_lines(joined)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        lines = []
    if len(lines) != len(payloads):  # One is invalid or empty.
        lines = [_decode_one(payload) for payload in payloads]
    special = [at for at, line in enumerate(lines) if line is None or not _is_plain_report(line)]
    return JournalLines(payloads, lines, special, num_bytes)


_decoder = msgspec.json.Decoder(EventLine)


def _is_plain_report(line: EventLine) -> bool:
    """Whether a report contains only its own metrics."""
    return line.type == "reported" and line.metrics is not None and line.checkpoint is None and line.reduce is ABSENT


def _decode_one(payload: bytes) -> EventLine | None:
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def _check_lines(data: bytes) -> list[bytes] | None:
    """Return the payloads of all lines; None if a checksum does not match."""
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


def _decode_by_name(payloads: list[bytes], joined: bytes, names: Iterable[str], num_bytes: int) -> JournalLines | None:
    decoded = map(_decode_one, payloads[:1000])
    first = next((line for line in decoded if line is not None and _is_plain_report(line)), None)
    if first is None or first.metrics is None:
        return None
    all_names = tuple(dict.fromkeys((*names, *first.metrics)))
    if not 0 < len(all_names) <= _MAX_TYPED_NAMES:
        return None
    try:
        # Fails for names with quotes and the like: they are decoded the other way.
        kind, decoder = _make_decoder(all_names)
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
    return JournalLines(payloads, lines, special, num_bytes, all_names)


@lru_cache(maxsize=64)
def _make_decoder(names: tuple[str, ...]) -> tuple[type[Any], Any]:
    """Return the type of reports with these metrics, all numbers, and a decoder for them and all other events."""
    fields = [(f"m{at}", int | float | UnsetType, UNSET) for at in range(len(names))]
    rename = {f"m{at}": name for at, name in enumerate(names)}
    metrics = msgspec.defstruct("Metrics", fields, rename=rename, forbid_unknown_fields=True, gc=False)
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
        tag="reported",
        gc=False,
    )
    kinds: Any = report
    for event in get_args(Event):
        if (tag := event.__struct_config__.tag) != "reported":
            kinds |= msgspec.defstruct(f"Other{event.__name__}", [], tag=tag, gc=False)
    return report, msgspec.json.Decoder(kinds)
