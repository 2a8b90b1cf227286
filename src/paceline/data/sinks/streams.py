"""Files of text, compressed or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

SUFFIXES = {"gzip": ".gz", "bz2": ".bz2", "zstd": ".zst", "lz4": ".lz4"}


def suffix_of(compression: str | None) -> str:
    """What a file's name ends in, so that readers know how it is compressed."""
    if compression is None:
        return ""
    if compression not in SUFFIXES:
        raise ValueError(f"compression={compression!r} is not known: it must be None, {', '.join(map(repr, SUFFIXES))}")
    return SUFFIXES[compression]


def opened(path: Path, compression: str | None) -> Any:
    """A stream of pyarrow's to write bytes to."""
    stream = pa.OSFile(str(path), "wb")
    return stream if compression is None else pa.CompressedOutputStream(stream, compression)
