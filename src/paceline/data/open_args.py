"""`arrow_open_stream_args`: how files are opened, in the words of `pyarrow.fs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline._core.arguments import bad_value, check_choice, check_instance, check_int

DETECT = "detect"
_CODECS = ("gzip", "bz2", "brotli", "lz4", "zstd")
_KNOWN = ("compression", "buffer_size")


def parse_open_args(name: str, value: Any) -> dict[str, Any]:
    """Check the arguments; `compression` is "detect" (by the file's name), a codec, or None for none."""
    given = dict(check_instance(name, value, Mapping, "a dict such as {'compression': 'gzip'}", optional=True) or {})
    if unknown := next((each for each in given if each not in _KNOWN), None):
        raise bad_value(f"a key of {name}", " or ".join(map(repr, _KNOWN)), unknown)
    check_choice(f"compression of {name}", given.get("compression"), (*_CODECS, DETECT, None))
    check_int(f"buffer_size of {name}", given.get("buffer_size"), at_least=0, optional=True)
    return given
