"""TFRecord files of `tf.train.Example`: one row per record, one column per feature.

A feature with one value in every record of a file is a column of values; otherwise it is a column of lists. A missing
feature is null. Each record is framed:

    length      uint64, little-endian
    checksum    of those eight bytes: CRC-32C, masked so that checksums of data that contains checksums stay good
    data        that many bytes
    checksum    of the data
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import Any, BinaryIO, Literal, Protocol

import numpy as np
import pyarrow as pa

from paceline._core.lazy_imports import import_extra
from paceline.data.block import Block, Column
from paceline.data.sources.files import InputFile, InvalidContentError, explain_read_errors
from paceline.data.sources.media import FileReader
from paceline.data.sources.tf_examples import DecodedFeature, ExampleDecoder, Kind, MalformedExampleError

Compression = Literal["GZIP", "ZLIB"]

_TYPES: dict[Kind, Any] = {"bytes": pa.binary(), "float": pa.float32(), "int64": pa.int64()}
_RECORDS = 4096
_BLOCK_BYTES = 8 << 20
_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_OVERHEAD = _HEADER.size + _CHECKSUM.size
_READ_BYTES = 1 << 20
_MASK_DELTA = 0xA282EAD8
_BAD_LENGTH = "the checksum of its length does not match: the file is corrupt, compressed or not a TFRecord file"


@dataclass(frozen=True)
class TFRecordReader(FileReader):
    types: tuple[tuple[str, Any], ...] = ()
    compression: Compression | None = None
    columns: tuple[str, ...] | None = None

    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        shapes = FeatureShapes(dict(self.types))
        decoder = ExampleDecoder()
        done = 0
        with (
            explain_read_errors(file, "TFRecords of tf.train.Example"),
            file.open() if self.compression else file.stream() as opened,
        ):
            records = read_records(InflatingReader(opened) if self.compression else opened)
            while True:
                try:
                    batch = _take_batch(records)
                    columns = self._make_columns(decoder.decode(batch), shapes, len(batch))
                except MalformedExampleError as error:
                    raise InvalidContentError(f"record {done + error.record}: {error.reason}") from None
                if not batch:
                    return
                yield Block(columns, num_rows=len(batch))
                done += len(batch)

    def _make_columns(
        self, features: Mapping[str, DecodedFeature], shapes: FeatureShapes, num_rows: int
    ) -> dict[str, Column]:
        names = sorted({*features, *shapes.types})
        if self.columns is not None and {*self.columns} <= {*names}:
            names = [name for name in names if name in self.columns]
        return {name: shapes.make_column(name, features.get(name), num_rows) for name in names}

    def project_columns(self, columns: Sequence[str]) -> TFRecordReader | None:
        return replace(self, columns=tuple(columns))


def parse_feature_types(tf_schema: Any) -> tuple[tuple[str, Any], ...]:
    """Check a `tf_schema`; return its Arrow types by name of the feature."""
    if tf_schema is None:
        return ()
    if isinstance(tf_schema, pa.Schema):
        tf_schema = dict(zip(tf_schema.names, tf_schema.types, strict=True))
    if not isinstance(tf_schema, Mapping):
        raise TypeError(f"tf_schema must be a dict from features to Arrow types or a pyarrow.Schema, got {tf_schema!r}")
    for name, kind in tf_schema.items():
        if not isinstance(kind, pa.DataType):
            raise TypeError(
                f"tf_schema[{name!r}] must be an Arrow type such as pyarrow.list_(pyarrow.int64()), got {kind!r}"
            )
    return tuple(tf_schema.items())


def _take_batch(records: Iterator[bytes]) -> list[bytes]:
    """The next records, up to a number of records or bytes."""
    batch: list[bytes] = []
    size = 0
    for data in islice(records, _RECORDS):
        batch.append(data)
        size += len(data)
        if size >= _BLOCK_BYTES:
            break
    return batch


@dataclass
class FeatureShapes:
    """Which features are single values and which are lists: as declared, or as first seen."""

    types: dict[str, Any]
    lists: dict[str, bool] = field(default_factory=dict)

    def make_column(self, name: str, feature: DecodedFeature | None, num_rows: int) -> Column:
        if feature is None:
            return pa.chunked_array([pa.nulls(num_rows, self.types[name])])
        column = _list_column(feature) if self._is_list(name, feature) else _single_value_column(feature)
        kind = self.types.get(name)
        if kind is None:
            return column
        try:
            return pa.chunked_array([column if isinstance(column, pa.Array) else pa.array(column)]).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidContentError(
                f"cannot convert feature {name!r} to {kind}, its type in tf_schema: {error}"
            ) from None

    def _is_list(self, name: str, feature: DecodedFeature) -> bool:
        several = feature.counts > 1
        if name in self.types:
            listed = bool(pa.types.is_list(self.types[name]) or pa.types.is_large_list(self.types[name]))
        else:
            listed = self.lists.setdefault(name, bool(several.any()))
        if not listed and several.any():
            row = int(np.argmax(several))
            raise MalformedExampleError(
                f"feature {name!r} has {feature.counts[row]} values, and one in earlier records\n\n"
                f"hint: read_tfrecords(..., tf_schema={{{name!r}: pyarrow.list_(...)}}) makes it a list in all records",
                row,
            )
        return listed


def _single_value_column(feature: DecodedFeature) -> Column:
    present = feature.counts == 1
    if feature.kind == "bytes":
        values: list[bytes | None] = [None] * len(present)
        for row, value in zip(np.nonzero(present)[0].tolist(), feature.values, strict=True):
            values[row] = value
        return pa.array(values, _TYPES["bytes"])
    if present.all():
        return np.asarray(feature.values)
    spread = np.zeros(len(present), np.asarray(feature.values).dtype)
    spread[present] = feature.values
    return pa.array(spread, _TYPES[feature.kind], mask=~present)


def _list_column(feature: DecodedFeature) -> Column:
    ends = np.cumsum(np.maximum(feature.counts, 0))
    offsets = np.concatenate((np.zeros(1, np.int64), ends)).astype(np.int32)
    mask = pa.array(feature.counts < 0) if (feature.counts < 0).any() else None
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(feature.values, _TYPES[feature.kind]), mask=mask)


class CorruptRecordError(InvalidContentError):
    """The file has no complete, unaltered record at this offset."""

    def __init__(self, record: int, offset: int, reason: str) -> None:
        super().__init__(f"record {record} (byte {offset}): {reason}")
        self.record, self.offset, self.reason = record, offset, reason

    def __reduce__(self) -> tuple[type[CorruptRecordError], tuple[int, int, str]]:
        return type(self), (self.record, self.offset, self.reason)


class ByteReader(Protocol):
    def read(self, size: int, /) -> bytes: ...


def masked_checksum(data: bytes) -> int:
    checksum: int = _crc32c()(data)
    return (((checksum >> 15) | (checksum << 17)) + _MASK_DELTA) & 0xFFFFFFFF


@cache
def _crc32c() -> Callable[[bytes], int]:
    return import_extra("google_crc32c", "TFRecords").value  # type: ignore[no-any-return]


def frame_record(data: bytes) -> bytes:
    length = _LENGTH.pack(len(data))
    return b"".join((length, _CHECKSUM.pack(masked_checksum(length)), data, _CHECKSUM.pack(masked_checksum(data))))


def read_records(file: ByteReader) -> Iterator[bytes]:
    """Yield the verified data of each record. An empty file has none; a file that ends within a record raises."""
    buffer, position, number, offset = b"", 0, 0, 0
    while True:
        num_needed = _HEADER.size
        if len(buffer) - position < num_needed:
            buffer, position = _read_at_least(file, buffer[position:], num_needed), 0
            if not buffer:
                return
        if len(buffer) - position >= num_needed:
            length, checksum = _HEADER.unpack_from(buffer, position)
            # Verified before it is used: a corrupt length could request all memory.
            if masked_checksum(buffer[position : position + _LENGTH.size]) != checksum:
                raise CorruptRecordError(number, offset, _BAD_LENGTH)
            num_needed = length + _OVERHEAD
            if len(buffer) - position < num_needed:
                buffer, position = _read_at_least(file, buffer[position:], num_needed), 0
        if len(buffer) - position < num_needed:
            reason = f"the file is cut off: it has {len(buffer) - position} of {num_needed} bytes"
            raise CorruptRecordError(number, offset, reason)
        end = position + num_needed
        data = buffer[position + _HEADER.size : end - _CHECKSUM.size]
        if masked_checksum(data) != _CHECKSUM.unpack_from(buffer, end - _CHECKSUM.size)[0]:
            raise CorruptRecordError(number, offset, "the checksum of its data does not match")
        yield data
        position, number, offset = end, number + 1, offset + num_needed


def _read_at_least(file: ByteReader, buffer: bytes, size: int) -> bytes:
    """Extend `buffer` from the file to at least `size` bytes, unless the file ends."""
    parts, have = [buffer], len(buffer)
    while have < size:
        part = file.read(max(_READ_BYTES, size - have) if size - have < 1 << 30 else 1 << 30)
        if not part:
            break
        parts.append(part)
        have += len(part)
    return b"".join(parts)


class InflatingReader:
    """Decompresses gzip or zlib data; TensorFlow calls them `GZIP` and `ZLIB`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._stream = _make_decompressor()
        self._begun = False

    def read(self, size: int, /) -> bytes:
        while True:
            if self._stream.eof:  # another member may follow, as in concatenated files
                rest = self._stream.unused_data or self._file.read(_READ_BYTES)
                if not rest:
                    return b""
                self._stream, self._begun = _make_decompressor(), False
            else:
                rest = self._stream.unconsumed_tail or self._file.read(_READ_BYTES)
                if not rest:
                    if self._begun:
                        raise EOFError("the compressed data is cut off")
                    return b""
            self._begun = True
            if part := self._stream.decompress(rest, size):
                return part


def _make_decompressor() -> zlib._Decompress:
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
