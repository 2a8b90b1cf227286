"""Encodes and decodes `tf.train.Example`, many records at once, without TensorFlow or protobuf.

An example is a map of named features, each a list of bytes, float32 or int64:

    Example   features: Features = 1
    Features  feature: map<string, Feature> = 1
    Feature   one of: bytes_list = 1, float_list = 2, int64_list = 3, each with repeated value = 1

In most files, many records have the same layout: the same names in the same order at the same offsets. So one record
is parsed, the bits that must match for another one to have the same layout are noted, and the values of all matching
records are read together, many times faster than with protobuf.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Column
from paceline.data.column import is_list

Kind = Literal["bytes", "float", "int64"]
Values = list[bytes] | np.ndarray[Any, Any]

KINDS: dict[int, Kind] = {1: "bytes", 2: "float", 3: "int64"}
_NUMBERS: dict[Kind, int] = {kind: number for number, kind in KINDS.items()}
DTYPES: dict[Kind, np.dtype[Any]] = {"float": np.dtype("<f4"), "int64": np.dtype("<i8")}

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIRES = {"bytes": (_LENGTH,), "float": (_LENGTH, _FIXED32), "int64": (_LENGTH, _VARINT)}
"""Allowed wire types: numbers are packed into one field, or each has its own field."""
_MAX_VARINT_BYTES = 10
_MAX_ALIKE_BYTES = 1 << 16
"""Longer records are mostly content, so nothing is gained by decoding many at once."""
_MIN_ALIKE_RECORDS = 4
_MAX_LAYOUTS = 8


class MalformedExampleError(ValueError):
    """The bytes are not a valid `tf.train.Example`. `record` is the index of the record."""

    def __init__(self, reason: str, record: int = 0) -> None:
        super().__init__(reason)
        self.reason, self.record = reason, record

    def __reduce__(self) -> tuple[type[MalformedExampleError], tuple[str, int]]:
        return type(self), (self.reason, self.record)


@dataclass(frozen=True)
class FeatureSpan:
    """Where the values of a feature are in a record."""

    name: str
    kind: Kind
    runs: tuple[tuple[int, int], ...]
    """For bytes, each run is one value; for numbers, any number of consecutive values."""


@dataclass(frozen=True)
class DecodedFeature:
    """A feature of some records: the number of values per record (-1 if the feature is missing), and all values."""

    kind: Kind
    counts: np.ndarray[Any, np.dtype[np.int64]]
    values: Values


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
                for span in find_feature_spans(records[row]):
                    _collector_for(features, span, row).add_row(row, read_feature(records[row], span))
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
            matching_rows, matching_bytes = (left, matrix) if fits.all() else (left[fits], matrix[fits])
            for span in layout.spans:
                gathered = _collector_for(features, span, int(matching_rows[0]))
                if span.kind == "bytes":
                    for row in matching_rows.tolist():
                        gathered.add_row(row, [records[row][begin:end] for begin, end in span.runs])
                else:
                    gathered.groups.append((matching_rows, _read_numbers(matching_bytes, span)))
            left, matrix = left[~fits], matrix[~fits]
        rest: list[int] = left.tolist()
        return rest


@dataclass(frozen=True)
class _RecordLayout:
    """A layout of records: the bits that must match. Everything else is content."""

    spans: list[FeatureSpan]
    places: np.ndarray[Any, np.dtype[np.intp]]
    mask: np.ndarray[Any, np.dtype[np.uint8]]
    bits: np.ndarray[Any, np.dtype[np.uint8]]

    @staticmethod
    def from_record(data: bytes, row: int) -> _RecordLayout:
        mask = np.full(len(data), 0xFF, np.uint8)
        with _naming_record(row):
            spans = find_feature_spans(data)
            for span in spans:
                read_feature(data, span)  # if it fails here, it fails in all records of this layout
        for span in spans:
            for begin, end in span.runs:
                # The highest bit of each byte marks the end of a varint.
                mask[begin:end] = 0x80 if span.kind == "int64" else 0
        (places,) = np.nonzero(mask)
        return _RecordLayout(spans, places, mask[places], np.frombuffer(data, np.uint8)[places] & mask[places])

    def match_rows(self, matrix: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        fits: np.ndarray[Any, np.dtype[np.bool_]] = ((matrix[:, self.places] & self.mask) == self.bits).all(axis=1)
        return fits


@dataclass
class _FeatureCollector:
    kind: Kind
    rows: list[int] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)
    groups: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = field(default_factory=list)
    """Rows with equally many values, and the values."""

    def add_row(self, row: int, values: Values) -> None:
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
        flat = np.empty(int(ends[-1]) if num_rows else 0, DTYPES[self.kind])
        for rows, matrix in self.groups:
            flat[begins[rows][:, None] + np.arange(matrix.shape[1])] = matrix
        for row, values in zip(self.rows, self.values, strict=True):
            flat[begins[row] : ends[row]] = values
        return DecodedFeature(self.kind, counts, flat)


def _collector_for(features: dict[str, _FeatureCollector], span: FeatureSpan, row: int) -> _FeatureCollector:
    gathered = features.setdefault(span.name, _FeatureCollector(span.kind))
    if gathered.kind != span.kind:
        raise MalformedExampleError(
            f"feature {span.name!r} is a {span.kind} list, and a {gathered.kind} list in other records", row
        )
    return gathered


def _read_numbers(matrix: np.ndarray[Any, np.dtype[np.uint8]], span: FeatureSpan) -> np.ndarray[Any, Any]:
    """The values of a feature in records with the same layout, one record per row."""
    parts = [matrix[:, begin:end] for begin, end in span.runs]
    if not parts:
        return np.empty((len(matrix), 0), DTYPES[span.kind])
    content = np.ascontiguousarray(np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0])
    if span.kind == "float":
        return content.view(DTYPES["float"])
    begins, shifts = locate_varints(content[0])
    bits = (content & 0x7F).astype(np.uint64) << shifts
    return np.bitwise_or.reduceat(bits, begins, axis=1).view(DTYPES["int64"])


@contextmanager
def _naming_record(row: int) -> Iterator[None]:
    try:
        yield
    except MalformedExampleError as error:
        raise MalformedExampleError(error.reason, row) from None


def find_feature_spans(data: bytes) -> list[FeatureSpan]:
    """Locate the features of an example. For duplicate names the last one counts, as in protobuf.

    A feature without a kind counts as absent.
    """
    spans: dict[str, FeatureSpan] = {}
    for number, wire, begin, end in _iterate_fields(data, 0, len(data)):
        if number == 1:
            _expect_length_wire(wire, "Example.features")
            for inner, inner_wire, first, last in _iterate_fields(data, begin, end):
                if inner == 1:
                    _expect_length_wire(inner_wire, "Features.feature")
                    name, kind, runs = _parse_entry(data, first, last)
                    spans.pop(name, None)
                    if kind is not None:
                        spans[name] = FeatureSpan(name, kind, tuple(runs))
    return list(spans.values())


def read_feature(data: bytes, span: FeatureSpan) -> Values:
    if span.kind == "bytes":
        return [data[begin:end] for begin, end in span.runs]
    if not span.runs:
        return np.empty(0, DTYPES[span.kind])
    if span.kind == "float":
        joined = (
            b"".join(data[begin:end] for begin, end in span.runs) if len(span.runs) > 1 else data[slice(*span.runs[0])]
        )
        if len(joined) % 4:
            raise MalformedExampleError(
                f"the floats of feature {span.name!r} take {len(joined)} bytes, not a multiple of 4"
            )
        return np.frombuffer(joined, DTYPES["float"])
    return np.concatenate([_read_varints(data[begin:end], span.name) for begin, end in span.runs])


def _parse_entry(data: bytes, begin: int, end: int) -> tuple[str, Kind | None, list[tuple[int, int]]]:
    name = ""
    kind: Kind | None = None
    runs: list[tuple[int, int]] = []
    for number, wire, first, last in _iterate_fields(data, begin, end):
        if number == 1:
            _expect_length_wire(wire, "the name of a feature")
            try:
                name = data[first:last].decode()
            except UnicodeDecodeError:
                raise MalformedExampleError(f"the name of a feature is not UTF-8: {data[first:last]!r}") from None
        elif number == 2:
            _expect_length_wire(wire, "a feature")
            kind, runs = _parse_feature(data, first, last)
    return name, kind, runs


def _parse_feature(data: bytes, begin: int, end: int) -> tuple[Kind | None, list[tuple[int, int]]]:
    kind: Kind | None = None
    runs: list[tuple[int, int]] = []
    for number, wire, first, last in _iterate_fields(data, begin, end):
        if number not in KINDS:
            continue
        _expect_length_wire(wire, "the values of a feature")
        if kind != KINDS[number]:  # a oneof field: the last one counts
            kind, runs = KINDS[number], []
        for inner, inner_wire, low, high in _iterate_fields(data, first, last):
            if inner == 1:
                if inner_wire not in _WIRES[kind]:
                    raise MalformedExampleError(f"a value of a {kind} list has the wire type {inner_wire}")
                if low < high or kind == "bytes":
                    runs.append((low, high))
    return kind, runs


def _iterate_fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number, wire type, content begin and content end of each field."""
    while position < end:
        key, position = _read_varint(data, position, end)
        wire, begin = key & 7, position
        if wire == _LENGTH:
            length, begin = _read_varint(data, position, end)
            position = begin + length
        elif wire == _VARINT:
            _, position = _read_varint(data, position, end)
        elif wire == _FIXED32:
            position += 4
        elif wire == _FIXED64:
            position += 8
        else:
            raise MalformedExampleError(f"byte {position - 1}: unknown wire type {wire}")
        if position > end:
            raise MalformedExampleError(f"byte {begin}: a field of {position - begin} bytes exceeds its message")
        yield key >> 3, wire, begin, position


def _read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(position, min(end, position + _MAX_VARINT_BYTES)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise MalformedExampleError(f"byte {position}: a number does not end")


def _read_varints(data: bytes, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    if data[-1] >= 0x80:
        raise MalformedExampleError(f"the last number of feature {name!r} does not end")
    if len(data) == 1:
        return np.array([data[0]], DTYPES["int64"])
    array = np.frombuffer(data, np.uint8)
    begins, shifts = locate_varints(array)
    if shifts.max() >= 7 * _MAX_VARINT_BYTES:
        raise MalformedExampleError(f"a number of feature {name!r} has more than {_MAX_VARINT_BYTES} bytes")
    return np.bitwise_or.reduceat((array & 0x7F).astype(np.uint64) << shifts, begins).view(DTYPES["int64"])


def locate_varints(
    content: np.ndarray[Any, np.dtype[np.uint8]],
) -> tuple[np.ndarray[Any, np.dtype[np.intp]], np.ndarray[Any, np.dtype[np.uint64]]]:
    """Return where each varint begins, and the shift of the seven bits of each byte."""
    (ends,) = np.nonzero(content < 0x80)
    begins = np.concatenate((np.zeros(1, np.intp), ends[:-1] + 1))
    places = np.arange(len(content)) - np.repeat(begins, ends - begins + 1)
    return begins, (places * 7).astype(np.uint64)


def _expect_length_wire(wire: int, field: str) -> None:
    if wire != _LENGTH:
        raise MalformedExampleError(f"{field} must have the wire type {_LENGTH}, got {wire}")


def encode_examples(block: Block) -> Iterator[bytes]:
    """Encode each row as an example: integers and booleans as int64, other numbers as float, text and bytes as bytes.

    Lists and one-dimensional tensors become features with several values. Nulls are omitted.
    """
    columns = [_encode_column(name, values) for name, values in block.columns.items()]
    if not columns:
        yield from (b"" for _ in range(block.num_rows))
        return
    for row in zip(*columns, strict=True):
        yield _encode_field(1, b"".join(row))


def _encode_column(name: str, values: Column) -> Iterator[bytes]:
    """Yield each row's map entry for a column; empty for a null."""
    entry = _FeatureEncoder(name)
    return _encode_array(entry, values) if isinstance(values, np.ndarray) else _encode_arrow(entry, values)


class _FeatureEncoder:
    """Encodes the entries of one feature name. Caches the prefix of the values, which depends only on their length."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._key = _encode_field(1, name.encode())
        self._before: dict[tuple[Kind, int], bytes] = {}

    def encode_packed(self, kind: Kind, values: bytes) -> bytes:
        prefix = self._before.get((kind, len(values)))
        if prefix is None:
            entry = self.wrap_values(kind, _encode_field(1, values) if values else b"")
            prefix = self._before[kind, len(values)] = entry[: len(entry) - len(values)]
        return prefix + values

    def wrap_values(self, kind: Kind, values: bytes) -> bytes:
        return _encode_field(1, self._key + _encode_field(2, _encode_field(_NUMBERS[kind], values)))

    def encode_values(self, values: Sequence[Any]) -> bytes:
        """Encode an entry by the types of the row's values."""
        if all(isinstance(value, bool | int | np.integer | np.bool_) for value in values):
            numbers = [int(value) for value in values]
            if any(not -(1 << 63) <= number < 1 << 63 for number in numbers):
                raise OverflowError(f"the column {self.name!r} has a number that does not fit an int64")
            return self.encode_packed("int64", b"".join(map(_encode_varint, numbers)))
        if all(isinstance(value, int | float | np.number) for value in values):
            return self.encode_packed("float", np.array(values, np.float32).astype("<f4").tobytes())
        if all(isinstance(value, str | bytes) for value in values):
            parts = (_encode_field(1, value.encode() if isinstance(value, str) else value) for value in values)
            return self.wrap_values("bytes", b"".join(parts))
        other = next(value for value in values if not isinstance(value, int | float | np.number | str | bytes))
        raise TypeError(_explain_unwritable(self.name, type(other).__name__))


def _encode_array(entry: _FeatureEncoder, values: np.ndarray[Any, Any]) -> Iterator[bytes]:
    if values.dtype == object:
        for value in values:
            if value is None:
                yield b""
            elif isinstance(value, np.ndarray) and value.dtype != object:
                yield from _encode_array(entry, value[None])
            else:
                yield entry.encode_values([*value] if isinstance(value, list | tuple | np.ndarray) else [value])
        return
    if values.ndim > 2:
        raise TypeError(
            f"the column {entry.name!r} must be one-dimensional for TFRecords, got tensors of shape {values.shape[1:]}"
            "\n\nhint: flatten it, or encode it as bytes, in map_batches"
        )
    rows = values[:, None] if values.ndim == 1 else values
    if rows.dtype.kind == "f":
        size, floats = 4 * rows.shape[1], rows.astype("<f4").tobytes()
        for begin in range(0, size * len(rows), size) if size else [0] * len(rows):
            yield entry.encode_packed("float", floats[begin : begin + size])
    elif rows.dtype.kind in "biu":
        if rows.dtype == np.uint64 and rows.size and rows.max() > np.iinfo(np.int64).max:
            raise OverflowError(f"the column {entry.name!r} has {rows.max()}, which does not fit an int64")
        for numbers in rows.tolist():
            yield entry.encode_packed("int64", b"".join(map(_encode_varint, map(int, numbers))))
    else:
        raise TypeError(_explain_unwritable(entry.name, str(rows.dtype)))


def _encode_arrow(entry: _FeatureEncoder, values: Any) -> Iterator[bytes]:
    kind = values.type
    if pa.types.is_dictionary(kind):
        values = values.cast(kind.value_type)
        kind = kind.value_type
    listed = is_list(kind)
    for value in values.to_pylist():
        if value is None:
            yield b""
        elif listed and not value:
            yield _encode_empty(entry, kind.value_type)
        else:
            yield entry.encode_values(value if listed else [value])


def _encode_empty(entry: _FeatureEncoder, kind: Any) -> bytes:
    if pa.types.is_floating(kind):
        return entry.wrap_values("float", b"")
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return entry.wrap_values("int64", b"")
    return b"" if pa.types.is_null(kind) else entry.wrap_values("bytes", b"")


def _explain_unwritable(name: str, kind: str) -> str:
    return (
        f"the column {name!r} must have integers, floats, text or bytes for TFRecords, got {kind}\n\n"
        "hint: drop or convert it before writing"
    )


def _encode_field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | _LENGTH,)) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    """Encode a varint. Negative numbers use 64-bit two's complement."""
    if 0 <= value < 0x80:
        return _SMALL[value]
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_SMALL = [bytes((value,)) for value in range(0x80)]
