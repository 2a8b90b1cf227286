"""`tf.train.Example` as bytes, and back, without TensorFlow or protobuf.

An example is a map of named features, each a list of bytes, of float32 or of int64:

    Example   features: Features = 1
    Features  feature: map<string, Feature> = 1
    Feature   one of: bytes_list = 1, float_list = 2, int64_list = 3, each with repeated value = 1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Column

Kind = Literal["bytes", "float", "int64"]
Values = list[bytes] | np.ndarray[Any, Any]

KINDS: dict[int, Kind] = {1: "bytes", 2: "float", 3: "int64"}
_NUMBERS: dict[Kind, int] = {kind: number for number, kind in KINDS.items()}
DTYPES: dict[Kind, np.dtype[Any]] = {"float": np.dtype("<f4"), "int64": np.dtype("<i8")}

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIRES = {"bytes": (_LENGTH,), "float": (_LENGTH, _FIXED32), "int64": (_LENGTH, _VARINT)}
"""How values may be written: numbers packed, all in one field, or each in one of its own."""
_MOST_BYTES = 10
"""Of a varint of 64 bits."""


class MalformedExampleError(ValueError):
    """The bytes are no `tf.train.Example`; `record` is which of those that were given."""

    def __init__(self, what: str, record: int = 0) -> None:
        super().__init__(what)
        self.what, self.record = what, record

    def __reduce__(self) -> tuple[type[MalformedExampleError], tuple[str, int]]:
        return type(self), (self.what, self.record)


@dataclass(frozen=True)
class Span:
    """Where the values of a feature lie in a record."""

    name: str
    kind: Kind
    runs: tuple[tuple[int, int], ...]
    """Of bytes, each is a value; of numbers, any number of them one behind the other."""


# Reading


def spans(data: bytes) -> list[Span]:
    """Where the features of an example are. Of a name that comes twice the last one counts, as in protobuf.

    A feature of no kind is as good as none.
    """
    found: dict[str, Span] = {}
    for number, wire, begin, end in _fields(data, 0, len(data)):
        if number == 1:
            _expect(wire, "Example.features")
            for inner, inner_wire, first, last in _fields(data, begin, end):
                if inner == 1:
                    _expect(inner_wire, "Features.feature")
                    name, kind, runs = _entry(data, first, last)
                    found.pop(name, None)
                    if kind is not None:
                        found[name] = Span(name, kind, tuple(runs))
    return list(found.values())


def values_at(data: bytes, span: Span) -> Values:
    """The values of one feature of one record."""
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
                f"the floats of feature {span.name!r} take {len(joined)} bytes, which is no multiple of 4"
            )
        return np.frombuffer(joined, DTYPES["float"])
    return np.concatenate([_varints(data[begin:end], span.name) for begin, end in span.runs])


def decoded(data: bytes) -> dict[str, Values]:
    """The features of one example."""
    return {span.name: values_at(data, span) for span in spans(data)}


def _entry(data: bytes, begin: int, end: int) -> tuple[str, Kind | None, list[tuple[int, int]]]:
    name = ""
    kind: Kind | None = None
    runs: list[tuple[int, int]] = []
    for number, wire, first, last in _fields(data, begin, end):
        if number == 1:
            _expect(wire, "the name of a feature")
            try:
                name = data[first:last].decode()
            except UnicodeDecodeError:
                raise MalformedExampleError(f"the name of a feature is not UTF-8: {data[first:last]!r}") from None
        elif number == 2:
            _expect(wire, "a feature")
            kind, runs = _feature(data, first, last)
    return name, kind, runs


def _feature(data: bytes, begin: int, end: int) -> tuple[Kind | None, list[tuple[int, int]]]:
    kind: Kind | None = None
    runs: list[tuple[int, int]] = []
    for number, wire, first, last in _fields(data, begin, end):
        if number not in KINDS:
            continue
        _expect(wire, "the values of a feature")
        if kind != KINDS[number]:  # one of three: the last one counts
            kind, runs = KINDS[number], []
        for inner, inner_wire, low, high in _fields(data, first, last):
            if inner == 1:
                if inner_wire not in _WIRES[kind]:
                    raise MalformedExampleError(f"a value of a {kind} list has the wire type {inner_wire}")
                if low < high or kind == "bytes":
                    runs.append((low, high))
    return kind, runs


def _fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, and where the content of each field begins and ends."""
    while position < end:
        key, position = _varint(data, position, end)
        wire, begin = key & 7, position
        if wire == _LENGTH:
            length, begin = _varint(data, position, end)
            position = begin + length
        elif wire == _VARINT:
            _, position = _varint(data, position, end)
        elif wire == _FIXED32:
            position += 4
        elif wire == _FIXED64:
            position += 8
        else:
            raise MalformedExampleError(f"byte {position - 1}: there is no wire type {wire}")
        if position > end:
            raise MalformedExampleError(f"byte {begin}: a field of {position - begin} bytes ends beyond what holds it")
        yield key >> 3, wire, begin, position


def _varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for place in range(position, min(end, position + _MOST_BYTES)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise MalformedExampleError(f"byte {position}: a number does not end")


def _varints(data: bytes, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """All numbers that were put one behind the other."""
    if data[-1] >= 0x80:
        raise MalformedExampleError(f"the last number of feature {name!r} does not end")
    if len(data) == 1:
        return np.array([data[0]], DTYPES["int64"])
    array = np.frombuffer(data, np.uint8)
    begins, shifts = number_places(array)
    if shifts.max() >= 7 * _MOST_BYTES:
        raise MalformedExampleError(f"a number of feature {name!r} has more than {_MOST_BYTES} bytes")
    return np.bitwise_or.reduceat((array & 0x7F).astype(np.uint64) << shifts, begins).view(DTYPES["int64"])


def number_places(
    content: np.ndarray[Any, np.dtype[np.uint8]],
) -> tuple[np.ndarray[Any, np.dtype[np.intp]], np.ndarray[Any, np.dtype[np.uint64]]]:
    """Where each number begins, and how far up the seven bits of each byte go."""
    (ends,) = np.nonzero(content < 0x80)
    begins = np.concatenate((np.zeros(1, np.intp), ends[:-1] + 1))
    places = np.arange(len(content)) - np.repeat(begins, ends - begins + 1)
    return begins, (places * 7).astype(np.uint64)


def _expect(wire: int, what: str) -> None:
    if wire != _LENGTH:
        raise MalformedExampleError(f"{what} has the wire type {wire}, where {_LENGTH} is meant")


# Writing


def examples(block: Block) -> Iterator[bytes]:
    """Each row as an example: whole numbers and booleans as int64, others as float, text and bytes as bytes.

    A row with a list, or a tensor of one dimension, has a feature of several values. A null is left out.
    """
    columns = [_features(name, values) for name, values in block.columns.items()]
    if not columns:
        yield from (b"" for _ in range(block.num_rows))
        return
    for row in zip(*columns, strict=True):
        yield _field(1, b"".join(row))


def _features(name: str, values: Column) -> Iterator[bytes]:
    """What each row of a column puts into the map: nothing for a null."""
    entry = _Entry(name)
    return _of_array(entry, values) if isinstance(values, np.ndarray) else _of_arrow(entry, values)


class _Entry:
    """Makes the entries of one name. What stands before the values depends on how long they are, and is kept."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._key = _field(1, name.encode())
        self._before: dict[tuple[Kind, int], bytes] = {}

    def packed(self, kind: Kind, values: bytes) -> bytes:
        """Of numbers that stand one behind the other."""
        before = self._before.get((kind, len(values)))
        if before is None:
            whole = self.wrapped(kind, _field(1, values) if values else b"")
            before = self._before[kind, len(values)] = whole[: len(whole) - len(values)]
        return before + values

    def wrapped(self, kind: Kind, values: bytes) -> bytes:
        return _field(1, self._key + _field(2, _field(_NUMBERS[kind], values)))

    def of(self, values: Sequence[Any]) -> bytes:
        """Of a row's values, by their types."""
        if all(isinstance(value, bool | int | np.integer | np.bool_) for value in values):
            numbers = [int(value) for value in values]
            if any(not -(1 << 63) <= number < 1 << 63 for number in numbers):
                raise OverflowError(f"the column {self.name!r} has a number that is more than an int64 holds")
            return self.packed("int64", b"".join(map(_written, numbers)))
        if all(isinstance(value, int | float | np.number) for value in values):
            return self.packed("float", np.array(values, np.float32).astype("<f4").tobytes())
        if all(isinstance(value, str | bytes) for value in values):
            parts = (_field(1, value.encode() if isinstance(value, str) else value) for value in values)
            return self.wrapped("bytes", b"".join(parts))
        other = next(value for value in values if not isinstance(value, int | float | np.number | str | bytes))
        raise TypeError(_unwritable(self.name, type(other).__name__))


def _of_array(entry: _Entry, values: np.ndarray[Any, Any]) -> Iterator[bytes]:
    if values.dtype == object:
        for value in values:
            if value is None:
                yield b""
            elif isinstance(value, np.ndarray) and value.dtype != object:
                yield from _of_array(entry, value[None])
            else:
                yield entry.of([*value] if isinstance(value, list | tuple | np.ndarray) else [value])
        return
    if values.ndim > 2:
        raise TypeError(
            f"the column {entry.name!r} has tensors of the shape {values.shape[1:]}, and a feature of a TFRecord is a "
            "flat list\n\nhint: reshape it to one dimension, or encode it as bytes, in map_batches"
        )
    rows = values[:, None] if values.ndim == 1 else values
    if rows.dtype.kind == "f":
        size, floats = 4 * rows.shape[1], rows.astype("<f4").tobytes()
        for begin in range(0, size * len(rows), size) if size else [0] * len(rows):
            yield entry.packed("float", floats[begin : begin + size])
    elif rows.dtype.kind in "biu":
        if rows.dtype == np.uint64 and rows.size and rows.max() > np.iinfo(np.int64).max:
            raise OverflowError(f"the column {entry.name!r} has {rows.max()}, which is more than an int64 holds")
        for numbers in rows.tolist():
            yield entry.packed("int64", b"".join(map(_written, map(int, numbers))))
    else:
        raise TypeError(_unwritable(entry.name, str(rows.dtype)))


def _of_arrow(entry: _Entry, values: Any) -> Iterator[bytes]:
    kind = values.type
    if pa.types.is_dictionary(kind):
        values = values.cast(kind.value_type)
        kind = kind.value_type
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    for value in values.to_pylist():
        if value is None:
            yield b""
        elif listed and not value:
            yield _empty(entry, kind.value_type)
        else:
            yield entry.of(value if listed else [value])


def _empty(entry: _Entry, kind: Any) -> bytes:
    if pa.types.is_floating(kind):
        return entry.wrapped("float", b"")
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return entry.wrapped("int64", b"")
    return b"" if pa.types.is_null(kind) else entry.wrapped("bytes", b"")


def _unwritable(name: str, kind: str) -> str:
    return (
        f"the column {name!r} has values of the type {kind}, and a feature of a TFRecord holds whole numbers, floats, "
        "text or bytes\n\nhint: drop or convert it before it is written"
    )


def _field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | _LENGTH,)) + _written(len(content)) + content


def _written(value: int) -> bytes:
    """A varint; a negative number as its two's complement of 64 bits."""
    if 0 <= value < 0x80:
        return _SMALL[value]
    value &= (1 << 64) - 1
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


_SMALL = [bytes((value,)) for value in range(0x80)]
