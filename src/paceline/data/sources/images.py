"""Image files, one row each, decoded by Pillow."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline._storage.store_errors import summarize_error
from paceline.data.block import Block, Schema, TensorType
from paceline.data.sources.files import InputFile
from paceline.data.sources.media import FileReader, InvalidContentError, explain_decoding, import_required

EXTENSIONS = ("png", "jpg", "jpeg", "tif", "tiff", "bmp", "gif", "webp")

_CHANNELS = {"L": (), "RGB": (3,), "RGBA": (4,), "CMYK": (4,), "YCbCr": (3,), "HSV": (3,), "LAB": (3,)}
"""The channel dimension of an array by Pillow mode, for modes with one byte per channel."""
_DECODED_SIZE_FACTOR = 8
"""About how much larger an image is in memory than in its file."""


@dataclass(frozen=True)
class ImageReader(FileReader):
    size: tuple[int, int] | None
    """Height and width; None: as in the file."""
    mode: str | None
    unit_bytes = 4 << 20
    rows_per_file = 1

    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        content = file.read()
        with explain_decoding(file, "an image"):
            array = decode_image(content, self.size, self.mode)
        yield Block({"image": array[None]})

    def num_bytes(self, file: InputFile) -> int | None:
        if self.size is None:
            return file.size * _DECODED_SIZE_FACTOR
        channels = _CHANNELS.get(self.mode or "RGB", (4,))
        return int(np.prod(self.size + channels))

    def schema(self) -> Schema | None:
        if self.size is None or self.mode not in _CHANNELS:
            return None
        return Schema(["image"], [TensorType(np.dtype(np.uint8), (*self.size, *_CHANNELS[self.mode]))])


def decode_image(content: bytes, size: tuple[int, int] | None = None, mode: str | None = None) -> np.ndarray[Any, Any]:
    """Decode an image to an array of height x width, or height x width x channels."""
    pillow = import_required("PIL.Image", "decoding images", "images")
    if not content:
        raise InvalidContentError("it is empty")
    try:
        with pillow.open(io.BytesIO(content)) as image:
            if size is not None:
                height, width = size
                # A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size, never below the requested size.
                image.draft(image.mode, (width, height))
            if mode is not None and image.mode != mode:
                image = image.convert(mode)
            if size is not None and image.size != (width, height):
                image = image.resize((width, height), pillow.Resampling.BILINEAR)
            return np.asarray(image)
    except import_required("PIL", "decoding images", "images").UnidentifiedImageError:
        raise InvalidContentError("Pillow does not know its format") from None
    except (SyntaxError, struct.error, zlib.error, IndexError, OverflowError, pillow.DecompressionBombError) as error:
        raise InvalidContentError(summarize_error(error)) from error
