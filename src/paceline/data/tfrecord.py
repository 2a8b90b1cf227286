"""The frame of a TFRecord file: each record with its length before it, and checksums of both.

length      uint64, little-endian
checksum    of those eight bytes: masked CRC-32C
data        as many bytes as that
checksum    of the data
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Protocol

from paceline.data.crc32c import crc32c, crc32cs, masked

_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_AROUND = _HEADER.size + _CHECKSUM.size
_READ_BYTES = 1 << 20


class CorruptRecordError(ValueError):
    """What lies at this place of a file is no whole, unaltered record."""

    def __init__(self, record: int, offset: int, what: str) -> None:
        super().__init__(f"record {record} (byte {offset}): {what}")
        self.record, self.offset, self.what = record, offset, what

    def __reduce__(self) -> tuple[type[CorruptRecordError], tuple[int, int, str]]:
        return type(self), (self.record, self.offset, self.what)


class Reads(Protocol):
    def read(self, size: int, /) -> bytes: ...


def framed(data: bytes) -> bytes:
    """A record as it stands in a file."""
    length = _LENGTH.pack(len(data))
    return b"".join(
        (length, _CHECKSUM.pack(masked(crc32c(length))), data, _CHECKSUM.pack(masked(crc32c(data)))),
    )


def records(file: Reads) -> Iterator[bytes]:
    """The data of each record, checked. An empty file has none; a file that ends within a record is an error."""
    held, number, offset = b"", 0, 0
    wanted = _HEADER.size
    while True:
        held = _filled(file, held, wanted)
        datas, checksums, used, error = _frames(held)
        for data, found, checksum in zip(datas, crc32cs(datas), checksums, strict=True):
            if masked(found) != checksum:
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


def _frames(held: bytes) -> tuple[list[bytes], list[int], int, str]:
    """The whole records at the beginning: data and checksum of each, how many bytes they are, and what is wrong."""
    datas: list[bytes] = []
    checksums: list[int] = []
    begin = 0
    while len(held) - begin >= _HEADER.size:
        length, checksum = _HEADER.unpack_from(held, begin)
        # Before anything is believed of it: an altered length could ask for all memory there is.
        if masked(crc32c(held[begin : begin + _LENGTH.size])) != checksum:
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


def _filled(file: Reads, held: bytes, size: int) -> bytes:
    """What is held and what comes next, at least so much unless the file ends."""
    parts, have = [held], len(held)
    while have < size:
        part = file.read(max(_READ_BYTES, size - have) if size - have < 1 << 30 else 1 << 30)
        if not part:
            break
        parts.append(part)
        have += len(part)
    return b"".join(parts)


class Inflated:
    """Reads what gzip or zlib made smaller, by TensorFlow's names `GZIP` and `ZLIB`."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._stream = _stream()
        self._begun = False

    def read(self, size: int, /) -> bytes:
        while True:
            if self._stream.eof:  # another member may follow, as in files that were put one after the other
                rest = self._stream.unused_data or self._file.read(_READ_BYTES)
                if not rest:
                    return b""
                self._stream, self._begun = _stream(), False
            else:
                rest = self._stream.unconsumed_tail or self._file.read(_READ_BYTES)
                if not rest:
                    if self._begun:
                        raise EOFError("the compressed data ends too early: it was cut off")
                    return b""
            self._begun = True
            if part := self._stream.decompress(rest, size):
                return part


def _stream() -> zlib._Decompress:
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
