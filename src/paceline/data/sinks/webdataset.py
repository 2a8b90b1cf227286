"""WebDataset tar files: the columns of a row are members that share a key.

Members have no timestamp and no owner, so the same rows make the same file.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from paceline._core.arguments import bad_value
from paceline.data.block import Block
from paceline.data.sinks.images import to_image
from paceline.data.sinks.json import to_plain_json
from paceline.data.sinks.sink import FileWriter, FormatSink
from paceline.data.sources.webdataset import NUMBERS, TEXTS

KEY = "__key__"

_JSON = {"json", "jsn"}
_IMAGES = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png", "ppm": "ppm", "pgm": "ppm", "pbm": "ppm", "webp": "webp"}

Encoder = bool | Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class WebDatasetSink(FormatSink):
    encoder: Encoder = True

    name = "write_webdataset"
    suffix = ".tar"

    def __post_init__(self) -> None:
        if not isinstance(self.encoder, bool) and not callable(self.encoder):
            raise bad_value("encoder", "True, False, or a function from a row to a row", self.encoder)

    def open(self, path: Path) -> WebDatasetWriter:
        return WebDatasetWriter(path, self.encoder)


class WebDatasetWriter(FileWriter):
    def __init__(self, path: Path, encoder: Encoder) -> None:
        self._tar = tarfile.open(path, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115  closed by close()
        self._encoder = encoder
        self._num_rows = 0
        self._last_key = ""

    def write(self, block: Block) -> None:
        for row in block.rows():
            key = str(row.get(KEY)) if row.get(KEY) is not None else f"{self._num_rows:08d}"
            if key == self._last_key:
                raise ValueError(
                    f"write_webdataset: consecutive rows must have different {KEY}, got {key!r} twice: "
                    "they would be read as one row"
                )
            self._num_rows, self._last_key = self._num_rows + 1, key
            if callable(self._encoder):
                row = self._encoder(row)
            for name, value in row.items():
                if not name.startswith("__") and value is not None:
                    self._add_member(f"{key}.{name}", encode_value(name, value, by_extension=self._encoder is True))

    def close(self) -> None:
        self._tar.close()

    def abandon(self) -> None:
        assert self._tar.fileobj is not None
        self._tar.fileobj.close()

    def _add_member(self, name: str, data: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        self._tar.addfile(member, io.BytesIO(data))


def encode_value(name: str, value: Any, *, by_extension: bool = True) -> bytes:
    """Encode a value as a member. `name` is a column, which may contain dots; its last part decides the encoding."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    extension = name.rpartition(".")[2].lower()
    if by_extension:
        if extension in NUMBERS and isinstance(value, int | np.integer):
            return str(int(value)).encode()
        if extension in TEXTS and np.ndim(value) == 0:
            return str(value).encode()
        if extension in _JSON:
            return msgspec.json.encode(value, enc_hook=to_plain_json)
        buffer = io.BytesIO()
        if extension == "npy":
            np.save(buffer, np.asarray(value), allow_pickle=False)
            return buffer.getvalue()
        if extension in _IMAGES:
            to_image(f"write_webdataset: column {name!r}", value).save(buffer, _IMAGES[extension])
            return buffer.getvalue()
    raise ValueError(
        f"write_webdataset: cannot encode column {name!r}, which has a value of type {type(value).__name__}\n\n"
        "hint: name it cls, txt, json, npy, jpg or png, or set encoder to a function that returns bytes"
    )
