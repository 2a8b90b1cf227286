"""Parses the query of a request: validates it and applies limits before anything is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal
from urllib.parse import parse_qsl

MAX_QUERY_BYTES = 32 << 10
MAX_FIELDS = 1000
MAX_POINTS = 20_000
MAX_POINTS_PER_REQUEST = 400_000
MIN_POINTS = 50
MAX_LINES = 5000
MAX_TEXT_CHARS = 4096
_MAX_INTEGER = 1 << 53


class RequestRefusedError(Exception):
    """The response is an error with this status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status, self.text = status, text

    def __str__(self) -> str:
        return self.text


class QueryFields:
    """The fields of a query. Each method names its field when it refuses the request."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self._fields = fields

    @classmethod
    def from_query(cls, query: bytes) -> QueryFields:
        if len(query) > MAX_QUERY_BYTES:
            raise RequestRefusedError(414, f"the query has {len(query)} bytes; at most {MAX_QUERY_BYTES} are allowed")
        fields: dict[str, list[str]] = {}
        try:
            pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
        except ValueError:
            raise RequestRefusedError(400, f"the query is invalid, or has more than {MAX_FIELDS} fields") from None
        for name, value in pairs:
            fields.setdefault(name, []).append(value)
        return cls(fields)

    def text(self, name: str) -> str:
        """Return a required field."""
        value = self.optional_text(name)
        if value is None:
            raise RequestRefusedError(400, f"`{name}` is missing")
        return value

    def optional_text(self, name: str) -> str | None:
        values = self._fields.get(name, ())
        if not values:
            return None
        if len(values) > 1:
            raise RequestRefusedError(400, f"`{name}` is given {len(values)} times")
        if (num_chars := len(values[0])) > MAX_TEXT_CHARS:
            raise RequestRefusedError(400, f"`{name}` has {num_chars} characters; at most {MAX_TEXT_CHARS} are allowed")
        return values[0]

    def all_texts(self, name: str) -> tuple[str, ...]:
        """Return the values without duplicates, in the order given."""
        return tuple(dict.fromkeys(self._fields.get(name, ())))

    def integer(self, name: str, default: int | None = None, *, least: int = 0, most: int = _MAX_INTEGER) -> int:
        """Return an integer; larger values are reduced to `most`."""
        if default is not None and self.optional_text(name) is None:
            return default
        text = self.text(name)
        # int() also accepts digits of other scripts, underscores and blanks.
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18) or int(text) < least:
            raise RequestRefusedError(400, f"`{name}` must be an integer of at least {least}, got {text[:50]!r}")
        return min(int(text), most)

    def optional_integer(self, name: str) -> int | None:
        return None if self.optional_text(name) is None else self.integer(name)

    def optional_number(self, name: str) -> float | None:
        text = self.optional_text(name)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise RequestRefusedError(400, f"`{name}` must be a number, got {text[:50]!r}")
        return value

    def axis(self) -> Literal["step", "time"]:
        text = self.optional_text("x") or "step"
        if text in ("step", "time"):
            return text  # type: ignore[return-value]
        raise RequestRefusedError(400, f"`x` must be `step` or `time`, got {text[:50]!r}")

    def range(self) -> tuple[float, float] | None:
        """Return the range; one or both ends may be missing."""
        begin, end = self.optional_number("from"), self.optional_number("to")
        if begin is None and end is None:
            return None
        first, last = -math.inf if begin is None else begin, math.inf if end is None else end
        if first > last:
            raise RequestRefusedError(400, f"`from` is {first:g}, above `to`, {last:g}")
        return first, last


def points_per_metric(requested: int, num_metrics: int) -> int:
    """Return the number of points for each metric of a request."""
    return min(requested, MAX_POINTS, max(MAX_POINTS_PER_REQUEST // max(num_metrics, 1), MIN_POINTS))
