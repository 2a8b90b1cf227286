"""Decodes many `tf.train.Example` records at once.

In most files, many records have the same layout: the same names in the same order at the same offsets. So one record
is parsed, the bits that must match for another one to have the same layout are noted, and the values of all matching
records are read together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.data.sources import tfexample_codec as codec

_MAX_ALIKE_BYTES = 1 << 16
"""Longer records are mostly content, so nothing is gained by decoding many at once."""
_MIN_ALIKE_RECORDS = 4
_MAX_LAYOUTS = 8


@dataclass(frozen=True)
class DecodedFeature:
    """A feature of some records: the number of values per record (-1 if the feature is missing), and all values."""

    kind: codec.Kind
    counts: np.ndarray[Any, np.dtype[np.int64]]
    values: codec.Values


class ExampleDecoder:
    """Decodes the examples of one file, and remembers the layouts it has seen."""

    def __init__(self) -> None:
        self._layouts: defaultdict[int, list[_RecordLayout]] = defaultdict(list)

    def decode(self, records: Sequence[bytes]) -> dict[str, DecodedFeature]:
        """The features by name, sorted. A feature has the same kind in all records."""
        features: dict[str, _FeatureCollector] = {}
        by_length: defaultdict[int, list[int]] = defaultdict(list)
        for row, data in enumerate(records):
            by_length[len(data)].append(row)
        alone = []
        for length, rows in by_length.items():
            alone += self._decode_alike(length, rows, records, features)
        for row in sorted(alone):
            with _naming_record(row):
                for span in codec.find_feature_spans(records[row]):
                    _collector_for(features, span, row).add_row(row, codec.read_feature(records[row], span))
        return {name: features[name].to_feature(len(records)) for name in sorted(features)}

    def _decode_alike(
        self, length: int, rows: list[int], records: Sequence[bytes], features: dict[str, _FeatureCollector]
    ) -> list[int]:
        """Decode the rows that share a layout; return the rest."""
        if length > _MAX_ALIKE_BYTES or len(rows) < _MIN_ALIKE_RECORDS:
            return rows
        left = np.array(rows)
        matrix = np.frombuffer(b"".join([records[row] for row in rows]), np.uint8).reshape(len(rows), length)
        layouts = self._layouts[length]
        tried = 0
        while len(left):
            if tried == len(layouts):
                if tried == _MAX_LAYOUTS:
                    break
                layouts.append(_RecordLayout.from_record(records[left[0]], int(left[0])))
            layout = layouts[tried]
            tried += 1
            fits = layout.match_rows(matrix)
            if not fits.any():
                continue
            taken, seen = (left, matrix) if fits.all() else (left[fits], matrix[fits])
            for span in layout.spans:
                gathered = _collector_for(features, span, int(taken[0]))
                if span.kind == "bytes":
                    for row in taken.tolist():
                        gathered.add_row(row, [records[row][begin:end] for begin, end in span.runs])
                else:
                    gathered.groups.append((taken, _read_numbers(seen, span)))
            left, matrix = left[~fits], matrix[~fits]
        rest: list[int] = left.tolist()
        return rest


@dataclass(frozen=True)
class _RecordLayout:
    """A layout of records: the bits that must match. Everything else is content."""

    spans: list[codec.FeatureSpan]
    places: np.ndarray[Any, np.dtype[np.intp]]
    mask: np.ndarray[Any, np.dtype[np.uint8]]
    bits: np.ndarray[Any, np.dtype[np.uint8]]

    @staticmethod
    def from_record(data: bytes, row: int) -> _RecordLayout:
        mask = np.full(len(data), 0xFF, np.uint8)
        with _naming_record(row):
            found = codec.find_feature_spans(data)
            for span in found:
                codec.read_feature(data, span)  # if it fails here, it fails in all records of this layout
        for span in found:
            for begin, end in span.runs:
                # The highest bit of each byte marks the end of a varint.
                mask[begin:end] = 0x80 if span.kind == "int64" else 0
        (places,) = np.nonzero(mask)
        return _RecordLayout(found, places, mask[places], np.frombuffer(data, np.uint8)[places] & mask[places])

    def match_rows(self, matrix: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        fits: np.ndarray[Any, np.dtype[np.bool_]] = ((matrix[:, self.places] & self.mask) == self.bits).all(axis=1)
        return fits


@dataclass
class _FeatureCollector:
    """Collects a feature from records in any order."""

    kind: codec.Kind
    rows: list[int] = field(default_factory=list)
    values: list[codec.Values] = field(default_factory=list)
    groups: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = field(default_factory=list)
    """Rows with equally many values, and the values."""

    def add_row(self, row: int, values: codec.Values) -> None:
        self.rows.append(row)
        self.values.append(values)

    def to_feature(self, num_rows: int) -> DecodedFeature:
        counts = np.full(num_rows, -1, np.int64)
        counts[self.rows] = [len(values) for values in self.values]
        if self.kind == "bytes":
            ordered = sorted(zip(self.rows, self.values, strict=True), key=lambda pair: pair[0])
            return DecodedFeature(self.kind, counts, [value for _, values in ordered for value in values])
        for rows, matrix in self.groups:
            counts[rows] = matrix.shape[1]
        ends = np.cumsum(np.maximum(counts, 0))
        begins = ends - np.maximum(counts, 0)
        flat = np.empty(int(ends[-1]) if num_rows else 0, codec.DTYPES[self.kind])
        for rows, matrix in self.groups:
            flat[begins[rows][:, None] + np.arange(matrix.shape[1])] = matrix
        for row, values in zip(self.rows, self.values, strict=True):
            flat[begins[row] : ends[row]] = values
        return DecodedFeature(self.kind, counts, flat)


def _collector_for(features: dict[str, _FeatureCollector], span: codec.FeatureSpan, row: int) -> _FeatureCollector:
    gathered = features.setdefault(span.name, _FeatureCollector(span.kind))
    if gathered.kind != span.kind:
        raise codec.MalformedExampleError(
            f"feature {span.name!r} is a {span.kind} list, and a {gathered.kind} list in other records", row
        )
    return gathered


def _read_numbers(matrix: np.ndarray[Any, np.dtype[np.uint8]], span: codec.FeatureSpan) -> np.ndarray[Any, Any]:
    """The values of a feature in records with the same layout, one record per row."""
    parts = [matrix[:, begin:end] for begin, end in span.runs]
    if not parts:
        return np.empty((len(matrix), 0), codec.DTYPES[span.kind])
    content = np.ascontiguousarray(np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0])
    if span.kind == "float":
        return content.view(codec.DTYPES["float"])
    begins, shifts = codec.locate_varints(content[0])
    bits = (content & 0x7F).astype(np.uint64) << shifts
    return np.bitwise_or.reduceat(bits, begins, axis=1).view(codec.DTYPES["int64"])


@contextmanager
def _naming_record(row: int) -> Iterator[None]:
    try:
        yield
    except codec.MalformedExampleError as error:
        raise codec.MalformedExampleError(error.reason, row) from None
