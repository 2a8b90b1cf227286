"""Text files, compressed or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

SUFFIXES = {"gzip": ".gz", "bz2": ".bz2", "zstd": ".zst", "lz4": ".lz4"}


def compression_suffix(compression: str | None) -> str:
    """The suffix by which readers recognize the compression."""
    if compression is None:
        return ""
    if compression not in SUFFIXES:
        raise ValueError(f"compression={compression!r} is not known: it must be None, {', '.join(map(repr, SUFFIXES))}")
    return SUFFIXES[compression]


def open_output(path: Path, compression: str | None) -> Any:
    """Open a pyarrow output stream."""
    stream = pa.OSFile(str(path), "wb")
    return stream if compression is None else pa.CompressedOutputStream(stream, compression)
