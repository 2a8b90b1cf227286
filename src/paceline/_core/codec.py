"""Framing of bytes: length-prefixed on a socket, checksummed lines in a file.

A line is `CRC32 PAYLOAD`, where the payload has no newline (it is JSON). Reading stops at the first line with a wrong
checksum: nothing after a torn write can be trusted.
"""

import io
import socket
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator

MAX_FRAME = 1 << 30

_unpack_size = struct.Struct(">I").unpack_from


def encode_frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def send_pending(end: socket.socket, pending: deque[memoryview]) -> int:
    """Send what the socket accepts without blocking, and return how many bytes that was."""
    num_sent = 0
    try:
        while pending:
            sent = end.send(pending[0], socket.MSG_DONTWAIT)
            num_sent += sent
            if sent < len(pending[0]):
                pending[0] = pending[0][sent:]
            else:
                pending.popleft()
    except BlockingIOError:
        pass
    return num_sent


class FrameReader:
    """Splits a stream of bytes back into the framed payloads."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._num_needed = 4

    def feed(self, data: bytes) -> list[bytes]:
        if self._rest:
            self._rest += data
            if len(self._rest) < self._num_needed:
                return []  # Part of a large frame: copy it once, when it is whole.
            data = bytes(self._rest)
        payloads = []
        start, size, self._num_needed = 0, len(data), 4
        while size - start >= 4:
            end = start + 4 + _unpack_size(data, start)[0]
            if end - start > MAX_FRAME:
                raise ValueError(f"a frame must have at most {MAX_FRAME} bytes, got {end - start}")
            if size < end:
                self._num_needed = end - start
                break
            payloads.append(data[start + 4 : end])
            start = end
        self._rest = bytearray(data[start:])
        return payloads


def seal_line(payload: bytes) -> bytes:
    assert b"\n" not in payload, "a newline in a line would make all that follow it unreadable"
    return b"%08x %b\n" % (zlib.crc32(payload), payload)


def unseal_line(line: bytes) -> bytes | None:
    """Return the payload of a line, or None if the line is torn or altered."""
    if len(line) < 10 or line[8:9] != b" " or line[-1:] != b"\n":
        return None
    payload = line[9:-1]
    try:
        expected = int(line[:8], 16)
    except ValueError:
        return None
    return payload if zlib.crc32(payload) == expected else None


def valid_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the payloads of all lines up to the first one that is torn or altered."""
    for line in lines:
        payload = unseal_line(line)
        if payload is None:
            return
        yield payload


def valid_prefix(data: bytes) -> Iterator[bytes]:
    """Like `valid_lines`, for bytes in memory."""
    return valid_lines(io.BytesIO(data))  # Not `splitlines`: a carriage return is part of a payload.
