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

from paceline.data.crc32c import crc32c, crc32cs, mask_checksum

_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_AROUND = _HEADER.size + _CHECKSUM.size
_READ_BYTES = 1 << 20


class CorruptRecordError(ValueError):
    """The file has no complete, unaltered record at this offset."""

    def __init__(self, record: int, offset: int, what: str) -> None:
        super().__init__(f"record {record} (byte {offset}): {what}")
        self.record, self.offset, self.what = record, offset, what

    def __reduce__(self) -> tuple[type[CorruptRecordError], tuple[int, int, str]]:
        return type(self), (self.record, self.offset, self.what)


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
    held, number, offset = b"", 0, 0
    wanted = _HEADER.size
    while True:
        held = _read_at_least(file, held, wanted)
        datas, checksums, used, error = _parse_frames(held)
        for data, found, checksum in zip(datas, crc32cs(datas), checksums, strict=True):
            if mask_checksum(found) != checksum:
                raise CorruptRecordError(number, offset, "its data does not have its checksum: it was altered")
            yield data
            number, offset = number + 1, offset + len(data) + _AROUND
        if error:
            raise CorruptRecordError(number, offset, error)
        held = held[used:]
        if not held and not datas:
            return
        if not datas and len(held) < wanted:
            raise CorruptRecordError(
                number, offset, f"the file ends {len(held)} bytes after its beginning, of {wanted}: it was cut off"
            )
        wanted = _HEADER.size
        if len(held) >= wanted:
            wanted = _HEADER.unpack_from(held)[0] + _AROUND


def _parse_frames(held: bytes) -> tuple[list[bytes], list[int], int, str]:
    """Parse the complete records: data and checksum of each, their size in bytes, and what is wrong."""
    datas: list[bytes] = []
    checksums: list[int] = []
    begin = 0
    while len(held) - begin >= _HEADER.size:
        length, checksum = _HEADER.unpack_from(held, begin)
        # Verified before it is used: a corrupt length could request all memory.
        if mask_checksum(crc32c(held[begin : begin + _LENGTH.size])) != checksum:
            return (
                datas,
                checksums,
                begin,
                "its length does not have its checksum: it is no TFRecord, compressed, or was altered",
            )
        end = begin + _HEADER.size + length
        if len(held) < end + _CHECKSUM.size:
            break
        datas.append(held[begin + _HEADER.size : end])
        checksums.append(_CHECKSUM.unpack_from(held, end)[0])
        begin = end + _CHECKSUM.size
    return datas, checksums, begin, ""


def _read_at_least(file: ByteReader, held: bytes, size: int) -> bytes:
    """Extend `held` from the file to at least `size` bytes, unless the file ends."""
    parts, have = [held], len(held)
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
                        raise EOFError("the compressed data ends too early: it was cut off")
                    return b""
            self._begun = True
            if part := self._stream.decompress(rest, size):
                return part


def _make_decompressor() -> zlib._Decompress:
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
