"""One image file per row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline._core.arguments import bad_value, join_or
from paceline.data.block import Block
from paceline.data.sinks.sink import FileWriter, FormatSink

_NAMES = {"jpg": "jpeg", "tif": "tiff"}


def import_pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ImportError('images need Pillow\n\nhint: pip install "paceline[images]"') from None
    return Image


@dataclass(frozen=True)
class ImageSink(FormatSink):
    column: str
    file_format: str

    name = "write_images"
    one_row_each = True

    @classmethod
    def from_arguments(cls, column: str, file_format: str) -> ImageSink:
        image = import_pillow()
        image.init()
        name = file_format.lower().lstrip(".")
        if _NAMES.get(name, name).upper() not in image.SAVE:
            raise bad_value("file_format", join_or(sorted(kind.lower() for kind in image.SAVE)), file_format)
        return cls(column, name)

    @property
    def suffix(self) -> str:
        return f".{self.file_format}"

    def open(self, path: Path) -> ImageWriter:
        return ImageWriter(path, self)


class ImageWriter(FileWriter):
    def __init__(self, path: Path, sink: ImageSink) -> None:
        self._path = path
        self._sink = sink

    def write(self, block: Block) -> None:
        values = block.column(self._sink.column)
        value = values[0] if isinstance(values, np.ndarray) else values[0].as_py()
        image = to_image(f"write_images: column {self._sink.column!r}", value)
        with self._path.open("wb") as file:
            image.save(file, _NAMES.get(self._sink.file_format, self._sink.file_format))

    def close(self) -> None:
        """The file was closed with its only row."""


def to_image(context: str, value: Any) -> Any:
    """Convert an array to a Pillow image."""
    array = np.asarray(value) if value is not None else np.empty(0, object)
    if array.dtype.kind in "iu" and array.dtype != np.uint8 and array.size and array.min() >= 0 and array.max() <= 255:
        array = array.astype(np.uint8)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    fits = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (2, 3, 4))
    if array.dtype not in (np.uint8, np.bool_) or not fits:
        raise ValueError(
            f"{context} must be an image of type uint8 and shape (height, width) or (height, width, channels), "
            f"got type {array.dtype} and shape {array.shape}\n\n"
            "hint: (255 * x).round().astype('uint8') converts floats from 0 to 1"
        )
    return import_pillow().fromarray(np.ascontiguousarray(array))
