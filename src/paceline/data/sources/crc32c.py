"""CRC-32C, the checksum of TFRecord files.

Uses `google_crc32c` or `crc32c` if one is installed. Otherwise it is computed in NumPy, for many records at once: a
checksum is the XOR of what each byte contributes, shifted by the number of bytes that follow it.
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
"""Below this many bytes, computing byte by byte is faster."""
_AT_ONCE = 1 << 20
_ZEROS = bytes(_CHUNK)
_MASK_DELTA = 0xA282EAD8

_Array = np.ndarray[Any, np.dtype[np.uint32]]


def mask_checksum(checksum: int) -> int:
    """Mask a checksum as TFRecord does, so that checksums of data that contains checksums stay good."""
    return (((checksum >> 15) | (checksum << 17)) + _MASK_DELTA) & _ONES


def crc32c(data: bytes) -> int:
    return crc32cs((data,))[0]


def crc32cs(datas: Sequence[bytes]) -> list[int]:
    """Return the checksum of each item."""
    extension = _extension()
    return [extension(data) for data in datas] if extension else compute_in_numpy(datas)


@cache
def _extension() -> Callable[[bytes], int] | None:
    for module, name in (("google_crc32c", "value"), ("crc32c", "crc32c")):
        if importlib.util.find_spec(module):
            results: Callable[[bytes], int] = getattr(importlib.import_module(module), name)
            return results
    return None


def compute_in_numpy(datas: Sequence[bytes]) -> list[int]:
    """Compute checksums with NumPy only."""
    if len(datas) <= 1 and sum(map(len, datas)) < _SHORT:
        return [_update_bytewise(data, _ONES) ^ _ONES for data in datas]
    # Leading zeros change nothing, once the initial bits of the checksum are folded into the first bytes of the data.
    padding = [(len(data) // _CHUNK + 1) * _CHUNK - len(data) for data in datas]
    joined = b"".join([part for pad, data in zip(padding, datas, strict=True) for part in (_ZEROS[:pad], data)])
    bytes_ = np.frombuffer(joined, np.uint8).copy()
    sizes = np.array(padding) + [len(data) for data in datas]
    begins = np.cumsum(sizes) - sizes + padding
    long = np.array([len(data) >= 4 for data in datas])
    bytes_[(begins[long][:, None] + np.arange(4)).reshape(-1)] ^= 0xFF
    # Compute the contribution of each chunk, then combine them in pairs until one is left for each item.
    chunks = np.concatenate(
        [_chunk_contributions(bytes_[at : at + _AT_ONCE]) for at in range(0, len(bytes_), _AT_ONCE)]
    )
    results = np.empty(len(datas), np.uint32)
    numbers = sizes // _CHUNK
    first = np.cumsum(numbers) - numbers
    for number in np.unique(numbers).tolist():
        (rows,) = np.nonzero(numbers == number)
        results[rows] = _combine_chunks(chunks[first[rows][:, None] + np.arange(number)])
    checksums: list[int] = (results ^ np.uint32(_ONES)).tolist()
    for row in np.nonzero(~long)[0].tolist():
        checksums[row] = _update_bytewise(datas[row], _ONES) ^ _ONES
    return checksums


def _chunk_contributions(bytes_: np.ndarray[Any, np.dtype[np.uint8]]) -> _Array:
    contributed: _Array = np.bitwise_xor.reduce(_positions()[np.arange(_CHUNK), bytes_.reshape(-1, _CHUNK)], axis=1)
    return contributed


def _combine_chunks(parts: _Array) -> _Array:
    level = 0
    while parts.shape[1] > 1:
        if parts.shape[1] % 2:
            parts = np.concatenate((np.zeros((len(parts), 1), np.uint32), parts), axis=1)
        parts = _look_up(_shift(level), parts[:, ::2]) ^ parts[:, 1::2]
        level += 1
    return parts[:, 0]


def _update_bytewise(data: bytes, state: int) -> int:
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
    """The contribution of each byte value to a chunk's checksum, for each position in the chunk."""
    step = np.array(_table(), np.uint32)
    rows = [step]
    for _ in range(_CHUNK - 1):
        last = rows[-1]
        rows.append(step[last & 0xFF] ^ (last >> 8))
    return np.stack(rows[::-1])


@cache
def _shift(level: int) -> _Array:
    """For each byte of a state, its value after 2 ** level chunks of zeros."""
    if level:
        half = _shift(level - 1)
        return _look_up(half, half)
    return np.array(
        [[_update_bytewise(_ZEROS, value << (8 * place)) for value in range(256)] for place in range(4)],
        dtype=np.uint32,
    )


def _look_up(table: _Array, states: _Array) -> _Array:
    results: _Array = (
        table[0][states & 0xFF]
        ^ table[1][(states >> 8) & 0xFF]
        ^ table[2][(states >> 16) & 0xFF]
        ^ table[3][states >> 24]
    )
    return results
