"""Many `tf.train.Example` records at once.

In most files many records look alike: the same names in the same order at the same places. So one of them is parsed,
the bits are noted that must be equal for another one to be read at the same places, and the values of all that agree
are taken together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.data.tfexample import (
    DTYPES,
    Kind,
    MalformedExampleError,
    Span,
    Values,
    number_places,
    spans,
    values_at,
)

_ALIKE_BYTES = 1 << 16
"""Of longer records most is content, so nothing is gained by looking at many at once."""
_FEWEST = 4
_MOST_LAYOUTS = 8


@dataclass(frozen=True)
class Decoded:
    """A feature of some records: how many values each of them has, -1 where it has no such feature, and all values."""

    kind: Kind
    counts: np.ndarray[Any, np.dtype[np.int64]]
    values: Values


class Decoder:
    """Reads the examples of one file; what it learns of how they look, it keeps."""

    def __init__(self) -> None:
        self._layouts: defaultdict[int, list[_Layout]] = defaultdict(list)

    def decode(self, records: Sequence[bytes]) -> dict[str, Decoded]:
        """The features by name, sorted. A feature is of one kind in all records."""
        features: dict[str, _Gathered] = {}
        by_length: defaultdict[int, list[int]] = defaultdict(list)
        for row, data in enumerate(records):
            by_length[len(data)].append(row)
        alone = []
        for length, rows in by_length.items():
            alone += self._alike(length, rows, records, features)
        for row in sorted(alone):
            data = records[row]
            for span in _spans_of(data, row):
                _gathered(features, span, row).put(row, _values_of(data, span, row))
        return {name: features[name].decoded(len(records)) for name in sorted(features)}

    def _alike(
        self, length: int, rows: list[int], records: Sequence[bytes], features: dict[str, _Gathered]
    ) -> list[int]:
        """Takes the rows that look like another one, and gives those that are left."""
        if length > _ALIKE_BYTES or len(rows) < _FEWEST:
            return rows
        left = np.array(rows)
        matrix = np.frombuffer(b"".join([records[row] for row in rows]), np.uint8).reshape(len(rows), length)
        layouts = self._layouts[length]
        tried = 0
        while len(left):
            if tried == len(layouts):
                if tried == _MOST_LAYOUTS:
                    break
                layouts.append(_Layout.of(records[left[0]], int(left[0])))
            layout = layouts[tried]
            tried += 1
            fits = layout.fits(matrix)
            if not fits.any():
                continue
            taken, seen = (left, matrix) if fits.all() else (left[fits], matrix[fits])
            for span in layout.spans:
                gathered = _gathered(features, span, int(taken[0]))
                if span.kind == "bytes":
                    for row in taken.tolist():
                        gathered.put(row, [records[row][begin:end] for begin, end in span.runs])
                else:
                    gathered.put_all(taken, _numbers(seen, span))
            left, matrix = left[~fits], matrix[~fits]
        rest: list[int] = left.tolist()
        return rest


@dataclass(frozen=True)
class _Layout:
    """How some records look: at these places these bits must be so. What else differs is content."""

    spans: list[Span]
    places: np.ndarray[Any, np.dtype[np.intp]]
    mask: np.ndarray[Any, np.dtype[np.uint8]]
    bits: np.ndarray[Any, np.dtype[np.uint8]]

    @staticmethod
    def of(data: bytes, row: int) -> _Layout:
        mask = np.full(len(data), 0xFF, np.uint8)
        found = _spans_of(data, row)
        for span in found:
            _values_of(data, span, row)  # what cannot be read here cannot be read in others like it
            for begin, end in span.runs:
                # The uppermost bit of each byte tells where a number ends.
                mask[begin:end] = 0x80 if span.kind == "int64" else 0
        (places,) = np.nonzero(mask)
        return _Layout(found, places, mask[places], np.frombuffer(data, np.uint8)[places] & mask[places])

    def fits(self, matrix: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        fits: np.ndarray[Any, np.dtype[np.bool_]] = ((matrix[:, self.places] & self.mask) == self.bits).all(axis=1)
        return fits


@dataclass
class _Gathered:
    """A feature, while the records that have it are met in any order."""

    kind: Kind
    rows: list[int] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)
    groups: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = field(default_factory=list)
    """Rows that have equally many values, and those."""

    def put(self, row: int, values: Values) -> None:
        self.rows.append(row)
        self.values.append(values)

    def put_all(self, rows: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
        self.groups.append((rows, values))

    def decoded(self, num_rows: int) -> Decoded:
        counts = np.full(num_rows, -1, np.int64)
        counts[self.rows] = [len(values) for values in self.values]
        if self.kind == "bytes":
            ordered = sorted(zip(self.rows, self.values, strict=True), key=lambda pair: pair[0])
            return Decoded(self.kind, counts, [value for _, values in ordered for value in values])
        for rows, matrix in self.groups:
            counts[rows] = matrix.shape[1]
        ends = np.cumsum(np.maximum(counts, 0))
        begins = ends - np.maximum(counts, 0)
        flat = np.empty(int(ends[-1]) if num_rows else 0, DTYPES[self.kind])
        for rows, matrix in self.groups:
            flat[begins[rows][:, None] + np.arange(matrix.shape[1])] = matrix
        for row, values in zip(self.rows, self.values, strict=True):
            flat[begins[row] : ends[row]] = values
        return Decoded(self.kind, counts, flat)


def _gathered(features: dict[str, _Gathered], span: Span, row: int) -> _Gathered:
    gathered = features.setdefault(span.name, _Gathered(span.kind))
    if gathered.kind != span.kind:
        raise MalformedExampleError(
            f"feature {span.name!r} is a {span.kind} list, and a {gathered.kind} list in other records", row
        )
    return gathered


def _numbers(matrix: np.ndarray[Any, np.dtype[np.uint8]], span: Span) -> np.ndarray[Any, Any]:
    """The values of a feature in records that look alike, one record in each row."""
    parts = [matrix[:, begin:end] for begin, end in span.runs]
    if not parts:
        return np.empty((len(matrix), 0), DTYPES[span.kind])
    content = np.ascontiguousarray(np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0])
    if span.kind == "float":
        return content.view(DTYPES["float"])
    begins, shifts = number_places(content[0])
    bits = (content & 0x7F).astype(np.uint64) << shifts
    return np.bitwise_or.reduceat(bits, begins, axis=1).view(DTYPES["int64"])


def _spans_of(data: bytes, row: int) -> list[Span]:
    try:
        return spans(data)
    except MalformedExampleError as error:
        raise MalformedExampleError(error.what, row) from None


def _values_of(data: bytes, span: Span, row: int) -> Values:
    try:
        return values_at(data, span)
    except MalformedExampleError as error:
        raise MalformedExampleError(error.what, row) from None
