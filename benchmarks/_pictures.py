"""Decodes JPEGs into bytes of one size, for a network that scales on the GPU. Does not import torch."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from _data import IMAGE_SIZE


def decode_image(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.resize((IMAGE_SIZE, IMAGE_SIZE)))


def decode_batch(batch: Mapping[str, Any]) -> dict[str, Any]:
    images = np.empty((len(batch["jpeg"]), IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
    for row, data in enumerate(batch["jpeg"]):
        images[row] = decode_image(data)
    return {"x": images, "label": np.array(batch["label"])}
