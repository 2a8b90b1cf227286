"""TFRecord framing: each record is preceded by its length, and both have checksums.

length      uint64, little-endian
checksum    of those eight bytes: CRC-32C, masked so that checksums of data that contains checksums stay good
data        that many bytes
checksum    of the data
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import BinaryIO, Protocol

from paceline.data.sources.media import import_required

_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_OVERHEAD = _HEADER.size + _CHECKSUM.size
_READ_BYTES = 1 << 20
_MASK_DELTA = 0xA282EAD8
_BAD_LENGTH = "the checksum of its length does not match: the file is corrupt, compressed or not a TFRecord file"


class CorruptRecordError(ValueError):
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
    return import_required("google_crc32c", "TFRecords", "tfrecords").value  # type: ignore[no-any-return]


def frame_record(data: bytes) -> bytes:
    """Frame a record as in a file."""
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
