"""TFRecord framing: each record is preceded by its length, and both have checksums.

length      uint64, little-endian
checksum    of those eight bytes: masked CRC-32C
data        that many bytes
checksum    of the data
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Protocol

from paceline.data.sources.crc32c import crc32c, crc32cs, mask_checksum

_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_OVERHEAD = _HEADER.size + _CHECKSUM.size
_READ_BYTES = 1 << 20


class CorruptRecordError(ValueError):
    """The file has no complete, unaltered record at this offset."""

    def __init__(self, record: int, offset: int, reason: str) -> None:
        super().__init__(f"record {record} (byte {offset}): {reason}")
        self.record, self.offset, self.reason = record, offset, reason

    def __reduce__(self) -> tuple[type[CorruptRecordError], tuple[int, int, str]]:
        return type(self), (self.record, self.offset, self.reason)


class ByteReader(Protocol):
    def read(self, size: int, /) -> bytes: ...


def frame_record(data: bytes) -> bytes:
    """Frame a record as in a file."""
    length = _LENGTH.pack(len(data))
    return b"".join(
        (length, _CHECKSUM.pack(mask_checksum(crc32c(length))), data, _CHECKSUM.pack(mask_checksum(crc32c(data)))),
    )


def read_records(file: ByteReader) -> Iterator[bytes]:
    """Yield the verified data of each record. An empty file has none; a file that ends within a record raises."""
    buffer, number, offset = b"", 0, 0
    num_needed = _HEADER.size
    while True:
        buffer = _read_at_least(file, buffer, num_needed)
        datas, checksums, used, error = _parse_frames(buffer)
        for data, found, checksum in zip(datas, crc32cs(datas), checksums, strict=True):
            if mask_checksum(found) != checksum:
                raise CorruptRecordError(number, offset, "the checksum of its data does not match")
            yield data
            number, offset = number + 1, offset + len(data) + _OVERHEAD
        if error:
            raise CorruptRecordError(number, offset, error)
        buffer = buffer[used:]
        if not buffer and not datas:
            return
        if not datas and len(buffer) < num_needed:
            raise CorruptRecordError(number, offset, f"the file is cut off: it has {len(buffer)} of {num_needed} bytes")
        num_needed = _HEADER.size
        if len(buffer) >= num_needed:
            num_needed = _HEADER.unpack_from(buffer)[0] + _OVERHEAD


def _parse_frames(buffer: bytes) -> tuple[list[bytes], list[int], int, str]:
    """Parse the complete records: data and checksum of each, their size in bytes, and what is wrong with the next."""
    datas: list[bytes] = []
    checksums: list[int] = []
    begin = 0
    while len(buffer) - begin >= _HEADER.size:
        length, checksum = _HEADER.unpack_from(buffer, begin)
        # Verified before it is used: a corrupt length could request all memory.
        if mask_checksum(crc32c(buffer[begin : begin + _LENGTH.size])) != checksum:
            reason = "the checksum of its length does not match: the file is corrupt, compressed or not a TFRecord file"
            return datas, checksums, begin, reason
        end = begin + _HEADER.size + length
        if len(buffer) < end + _CHECKSUM.size:
            break
        datas.append(buffer[begin + _HEADER.size : end])
        checksums.append(_CHECKSUM.unpack_from(buffer, end)[0])
        begin = end + _CHECKSUM.size
    return datas, checksums, begin, ""


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
