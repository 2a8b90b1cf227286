"""CRC-32C, the checksum of TFRecord files.

`google_crc32c` or `crc32c` do the work where one of them is installed. Without them it is done here in NumPy, for many
records at once: a checksum is a sum (exclusive or) of what each byte contributes, moved on by the number of bytes that
follow it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
_CHUNK = 64
_SHORT = 640
"""Fewer bytes than that are done sooner one at a time."""
_AT_ONCE = 1 << 20
_ZEROS = bytes(_CHUNK)
_MASK_DELTA = 0xA282EAD8

_Array = np.ndarray[Any, np.dtype[np.uint32]]


def masked(checksum: int) -> int:
    """As TFRecord stores it, so that a checksum of data that holds checksums is still a good one."""
    return (((checksum >> 15) | (checksum << 17)) + _MASK_DELTA) & _ONES


def crc32c(data: bytes) -> int:
    return crc32cs((data,))[0]


def crc32cs(datas: Sequence[bytes]) -> list[int]:
    """Of each."""
    extension = _extension()
    return [extension(data) for data in datas] if extension else computed(datas)


@cache
def _extension() -> Callable[[bytes], int] | None:
    for module, name in (("google_crc32c", "value"), ("crc32c", "crc32c")):
        if importlib.util.find_spec(module):
            found: Callable[[bytes], int] = getattr(importlib.import_module(module), name)
            return found
    return None


def computed(datas: Sequence[bytes]) -> list[int]:
    """Without any library's help."""
    if len(datas) <= 1 and sum(map(len, datas)) < _SHORT:
        return [_bytewise(data, _ONES) ^ _ONES for data in datas]
    # Zeros before the data change nothing, once the bits that a checksum begins with are put into its first bytes.
    padding = [(len(data) // _CHUNK + 1) * _CHUNK - len(data) for data in datas]
    joined = b"".join([part for pad, data in zip(padding, datas, strict=True) for part in (_ZEROS[:pad], data)])
    bytes_ = np.frombuffer(joined, np.uint8).copy()
    sizes = np.array(padding) + [len(data) for data in datas]
    begins = np.cumsum(sizes) - sizes + padding
    long = np.array([len(data) >= 4 for data in datas])
    bytes_[(begins[long][:, None] + np.arange(4)).reshape(-1)] ^= 0xFF
    # What each chunk contributes by itself, then of ever longer pairs, until one is left of each.
    chunks = np.concatenate([_contributed(bytes_[at : at + _AT_ONCE]) for at in range(0, len(bytes_), _AT_ONCE)])
    found = np.empty(len(datas), np.uint32)
    numbers = sizes // _CHUNK
    first = np.cumsum(numbers) - numbers
    for number in np.unique(numbers).tolist():
        (rows,) = np.nonzero(numbers == number)
        found[rows] = _added(chunks[first[rows][:, None] + np.arange(number)])
    checksums: list[int] = (found ^ np.uint32(_ONES)).tolist()
    for row in np.nonzero(~long)[0].tolist():
        checksums[row] = _bytewise(datas[row], _ONES) ^ _ONES
    return checksums


def _contributed(bytes_: np.ndarray[Any, np.dtype[np.uint8]]) -> _Array:
    contributed: _Array = np.bitwise_xor.reduce(_positions()[np.arange(_CHUNK), bytes_.reshape(-1, _CHUNK)], axis=1)
    return contributed


def _added(parts: _Array) -> _Array:
    level = 0
    while parts.shape[1] > 1:
        if parts.shape[1] % 2:
            parts = np.concatenate((np.zeros((len(parts), 1), np.uint32), parts), axis=1)
        parts = _looked_up(_shift(level), parts[:, ::2]) ^ parts[:, 1::2]
        level += 1
    return parts[:, 0]


def _bytewise(data: bytes, state: int) -> int:
    table = _table()
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state


@cache
def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


@cache
def _positions() -> _Array:
    """What a byte contributes to the checksum of a chunk, for each place in it."""
    step = np.array(_table(), np.uint32)
    rows = [step]
    for _ in range(_CHUNK - 1):
        last = rows[-1]
        rows.append(step[last & 0xFF] ^ (last >> 8))
    return np.stack(rows[::-1])


@cache
def _shift(level: int) -> _Array:
    """For each byte of a state, what comes of it after 2 ** level chunks of zeros."""
    if level:
        half = _shift(level - 1)
        return _looked_up(half, half)
    return np.array(
        [[_bytewise(_ZEROS, value << (8 * place)) for value in range(256)] for place in range(4)], dtype=np.uint32
    )


def _looked_up(table: _Array, states: _Array) -> _Array:
    found: _Array = (
        table[0][states & 0xFF]
        ^ table[1][(states >> 8) & 0xFF]
        ^ table[2][(states >> 16) & 0xFF]
        ^ table[3][states >> 24]
    )
    return found
