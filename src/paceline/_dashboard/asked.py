"""What a request asks for, out of its query: checked, and within limits, before anything is read for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal
from urllib.parse import parse_qsl

MOST_QUERY_BYTES = 32 << 10
MOST_FIELDS = 1000
MOST_POINTS = 20_000
POINTS_AT_ONCE = 400_000
"""Over all metrics of one request."""
LEAST_POINTS = 50
"""Of each metric, however many there are."""
MOST_LINES = 5000
MOST_TEXT = 4096
_NUMBER_MOST = 1 << 53


class Refused(Exception):
    """The answer is an error, with this status and this sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text

    def __str__(self) -> str:
        return self.text


class Asked:
    """The fields of a query; each question about one names the field in its refusal."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self._fields = fields

    @classmethod
    def of_query(cls, query: bytes) -> Asked:
        if len(query) > MOST_QUERY_BYTES:
            raise Refused(414, f"the query has {len(query)} bytes; it may have {MOST_QUERY_BYTES}")
        fields: dict[str, list[str]] = {}
        try:
            pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MOST_FIELDS)
        except ValueError:
            raise Refused(400, f"the query is not one, or has more than {MOST_FIELDS} fields") from None
        for name, value in pairs:
            fields.setdefault(name, []).append(value)
        return cls(fields)

    def text(self, name: str) -> str:
        """One that has to be there."""
        found = self.optional(name)
        if found is None:
            raise Refused(400, f"`{name}` is missing")
        return found

    def optional(self, name: str) -> str | None:
        values = self._fields.get(name, ())
        if not values:
            return None
        if len(values) > 1:
            raise Refused(400, f"`{name}` is there {len(values)} times")
        if len(values[0]) > MOST_TEXT:
            raise Refused(400, f"`{name}` has {len(values[0])} characters; it may have {MOST_TEXT}")
        return values[0]

    def all(self, name: str) -> tuple[str, ...]:
        """Each once, in the order given."""
        return tuple(dict.fromkeys(self._fields.get(name, ())))

    def whole(self, name: str, default: int | None = None, *, least: int = 0, most: int = _NUMBER_MOST) -> int:
        """Above the most, the most."""
        found = self.optional(name)
        if found is None and default is not None:
            return default
        text = found if found is not None else self.text(name)
        # Not what int() takes besides: digits of other scripts, underscores, blanks.
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18) or int(text) < least:
            raise Refused(400, f"`{name}` is {text[:50]!r}; it has to be a whole number from {least} on")
        return min(int(text), most)

    def optional_whole(self, name: str) -> int | None:
        return None if self.optional(name) is None else self.whole(name)

    def number(self, name: str) -> float | None:
        text = self.optional(name)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise Refused(400, f"`{name}` is {text[:50]!r}; it has to be a number")
        return value

    def axis(self) -> Literal["step", "time"]:
        text = self.optional("x") or "step"
        if text == "step":
            return "step"
        if text == "time":
            return "time"
        raise Refused(400, f"`x` is {text[:50]!r}; it has to be `step` or `time`")

    def range(self) -> tuple[float, float] | None:
        """Both ends, one of them, or none."""
        begin, end = self.number("from"), self.number("to")
        if begin is None and end is None:
            return None
        found = (-math.inf if begin is None else begin, math.inf if end is None else end)
        if found[0] > found[1]:
            raise Refused(400, f"`from` is {found[0]:g}, above `to`, {found[1]:g}")
        return found


def points_each(asked: int, num_metrics: int) -> int:
    """How many points each of so many metrics gets."""
    return min(asked, MOST_POINTS, max(POINTS_AT_ONCE // max(num_metrics, 1), LEAST_POINTS))
