"""Image files: one row each, decoded by Pillow."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline._storage.trouble import in_short
from paceline.data.block import Block, Schema, TensorType
from paceline.data.files import File
from paceline.data.sources.media import UnfitError, decoding, needed

EXTENSIONS = ("png", "jpg", "jpeg", "tif", "tiff", "bmp", "gif", "webp")

_CHANNELS = {"L": (), "RGB": (3,), "RGBA": (4,), "CMYK": (4,), "YCbCr": (3,), "HSV": (3,), "LAB": (3,)}
"""What a pixel of one byte for each channel adds to the shape, by Pillow's mode."""
_ABOUT = 8
"""How much larger an image is in memory than in a file, about."""


@dataclass(frozen=True)
class Images:
    size: tuple[int, int] | None
    """Height and width; None: as each is."""
    mode: str | None
    unit_bytes: int = 4 << 20

    def blocks(self, file: File) -> Iterator[Block]:
        content = file.read()
        with decoding(file, "an image"):
            array = decoded(content, self.size, self.mode)
        yield Block({"image": array[None]})

    def num_rows(self, file: File) -> int | None:
        return 1

    def num_bytes(self, file: File) -> int | None:
        if self.size is None:
            return file.size * _ABOUT
        channels = _CHANNELS.get(self.mode or "RGB", (4,))
        return int(np.prod(self.size + channels))

    def schema(self) -> Schema | None:
        if self.size is None or self.mode not in _CHANNELS:
            return None
        return Schema(["image"], [TensorType(np.dtype(np.uint8), (*self.size, *_CHANNELS[self.mode]))])

    def projected(self, columns: Sequence[str]) -> None:
        return None


def decoded(content: bytes, size: tuple[int, int] | None = None, mode: str | None = None) -> np.ndarray[Any, Any]:
    """An encoded image as an array of height x width, or height x width x channels."""
    pillow = needed("PIL.Image", "decoding images", "images")
    if not content:
        raise UnfitError("it is empty")
    try:
        with pillow.open(io.BytesIO(content)) as image:
            if size is not None:
                height, width = size
                # A JPEG can be decoded at a half, a quarter or an eighth of its size, never below what is asked for.
                image.draft(image.mode, (width, height))
            if mode is not None and image.mode != mode:
                image = image.convert(mode)
            if size is not None and image.size != (width, height):
                image = image.resize((width, height), pillow.Resampling.BILINEAR)
            return np.asarray(image)
    except needed("PIL", "decoding images", "images").UnidentifiedImageError:
        raise UnfitError("it is of no format that Pillow knows") from None
    except (SyntaxError, struct.error, zlib.error, IndexError, OverflowError, pillow.DecompressionBombError) as error:
        raise UnfitError(in_short(error)) from error
