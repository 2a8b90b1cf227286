"""JPEGs decoded into bytes of one size: what a network that scales on its GPU is fed with. No torch here."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from _data import WANTED


def decoded_one(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(picture.resize((WANTED, WANTED)))


def decoded_bytes(batch: Mapping[str, Any]) -> dict[str, Any]:
    pictures = np.empty((len(batch["jpeg"]), WANTED, WANTED, 3), np.uint8)
    for row, data in enumerate(batch["jpeg"]):
        pictures[row] = decoded_one(data)
    return {"x": pictures, "label": np.array(batch["label"])}
