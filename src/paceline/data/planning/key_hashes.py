"""Hashes the keys of rows: equal keys have equal hashes, in every process, on every machine and in every Arrow type.

1 and 1.0 are equal, and so are 0.0 and -0.0, and one moment in seconds and in microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from paceline.data.block import Block
from paceline.data.order.shuffle import hash_indices
from paceline.data.planning.sort_keys import key_array

Hashes = np.ndarray[Any, np.dtype[np.uint64]]

_WORD = 8
_MAX_WORDS = 32
"""Longer strings are hashed one by one."""
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_MASK = (1 << 64) - 1


def hash_keys(block: Block, names: Sequence[str], seed: int = 0) -> tuple[Hashes, np.ndarray[Any, Any]]:
    """Hash the values of some columns in each row. Also return which rows miss one of them: null or NaN."""
    hashes = hash_indices(np.zeros(block.num_rows, np.uint64), seed)
    is_missing = np.zeros(block.num_rows, bool)
    for name in names:
        array = key_array(block, name)
        if array.null_count:
            is_missing |= array.is_null().to_numpy(zero_copy_only=False)
        for words in _as_words(array):
            hashes = hash_indices(hashes ^ words, seed)
    return hashes, is_missing


def _as_words(array: Any) -> list[Hashes]:
    """Convert values to one or two 64-bit numbers each. Those of nulls do not matter."""
    kind = array.type
    if pa.types.is_boolean(kind):
        return [_to_numpy(array.cast(pa.uint8())).astype(np.uint64)]
    if pa.types.is_integer(kind):
        return [_to_numpy(array).astype(np.uint64)]
    if pa.types.is_floating(kind):
        return [_float_words(_to_numpy(array.cast(pa.float64())))]
    if pa.types.is_temporal(kind):
        return _time_words(array)
    if pa.types.is_decimal(kind):
        values = (value or 0 for value in array.to_pylist())
        words = (int(value) if value == int(value) else hash(value) for value in values)
        return [np.array([word & _MASK for word in words], np.uint64)]
    return [_byte_words(array.cast(pa.large_binary()))]


def _to_numpy(array: Any) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = pc.fill_null(array, pa.scalar(0, array.type)).to_numpy(zero_copy_only=False)
    return values


def _float_words(values: np.ndarray[Any, Any]) -> Hashes:
    """Whole numbers as integers, all others as their bits."""
    words = values.view(np.uint64).copy()
    is_whole = values == np.floor(values)
    signed = is_whole & (np.abs(values) < 2.0**63)
    words[signed] = values[signed].astype(np.int64).view(np.uint64)
    unsigned = is_whole & (values >= 2.0**63) & (values < 2.0**64)
    words[unsigned] = values[unsigned].astype(np.uint64)
    return words


def _time_words(array: Any) -> list[Hashes]:
    """Seconds and nanoseconds, since the units may differ."""
    kind = array.type
    ticks = _to_numpy(array.view(pa.int32() if kind.bit_width == 32 else pa.int64())).astype(np.int64)
    if pa.types.is_date32(kind):
        return [(ticks * 86_400).view(np.uint64), np.zeros(len(ticks), np.uint64)]
    per_second = _TICKS["ms" if pa.types.is_date64(kind) else kind.unit]
    seconds, rest = np.divmod(ticks, per_second)
    return [seconds.view(np.uint64), (rest * (10**9 // per_second)).view(np.uint64)]


def _byte_words(array: Any) -> Hashes:
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    data = array.buffers()[2]
    padded = np.concatenate([np.frombuffer(data or b"", np.uint8), np.zeros(_WORD, np.uint8)])
    at_every_byte: Any = np.ndarray(len(padded) - _WORD + 1, "<u8", padded, strides=(1,))
    masks = np.array([(1 << (8 * size)) - 1 for size in range(_WORD + 1)], np.uint64)
    begins, lengths = offsets[:-1], np.diff(offsets)
    hashes = lengths.astype(np.uint64)
    remaining = np.flatnonzero(lengths > 0)
    for number in range(_MAX_WORDS):
        if not len(remaining):
            return hashes
        first = number * _WORD
        words = at_every_byte[begins[remaining] + first] & masks[np.minimum(lengths[remaining] - first, _WORD)]
        hashes[remaining] = hash_indices(hashes[remaining] ^ words, 0)
        remaining = remaining[lengths[remaining] > first + _WORD]
    for row in remaining.tolist():
        hashes[row] ^= np.uint64(xxhash.xxh3_64_intdigest(padded[begins[row] : begins[row] + lengths[row]].tobytes()))
    return hashes
