"""JSON files, one object per line."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from paceline.data.block import Block
from paceline.data.sinks.sink import FileWriter, FormatSink, compression_suffix, open_output


@dataclass(frozen=True)
class JsonSink(FormatSink):
    compression: str | None = None

    name = "write_json"

    def __post_init__(self) -> None:
        compression_suffix(self.compression)

    @property
    def suffix(self) -> str:
        return f".json{compression_suffix(self.compression)}"

    def open(self, path: Path) -> JsonWriter:
        return JsonWriter(path, self)


class JsonWriter(FileWriter):
    def __init__(self, path: Path, sink: JsonSink) -> None:
        self._stream = open_output(path, sink.compression)
        self._encoder = msgspec.json.Encoder(enc_hook=to_plain_json)

    def write(self, block: Block) -> None:
        try:
            self._stream.write(self._encoder.encode_lines(block.rows()))
        except (TypeError, ValueError) as error:
            raise type(error)(f"write_json: {_describe_bad_column(block, self._encoder)}{error}") from error

    def close(self) -> None:
        self._stream.close()


def to_plain_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.bool_ | np.number):
        return value.item()
    if isinstance(value, np.datetime64 | np.timedelta64 | np.str_):
        return str(value)
    if isinstance(value, np.bytes_):
        return base64.b64encode(value).decode()
    raise TypeError(f"cannot write a {type(value).__name__} as JSON")


def _describe_bad_column(block: Block, encoder: Any) -> str:
    for row in block.rows():
        for name, value in row.items():
            try:
                encoder.encode(value)
            except (TypeError, ValueError):
                return f"column {name!r}: "
    return ""
