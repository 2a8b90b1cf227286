"""TorchVisionPreprocessor: applies a transform of torchvision, or any function of a tensor, to images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from paceline._core.arguments import check_bool, check_callable
from paceline.data.batches import import_framework
from paceline.data.block import Block, Column, as_numpy
from paceline.data.column import column_of
from paceline.data.preprocessor import ColumnPreprocessor


class TorchVisionPreprocessor(ColumnPreprocessor):
    """Applies `transform` to each image of `columns`, or with `batched=True` to all images of a batch at once.

    The transform receives a torch tensor, or an array if it raises `TypeError` for a tensor, as `ToTensor()` does. It
    returns either. Only a function at the top level of a module can be saved.
    """

    _is_fittable = False
    _attributes: ClassVar[dict[str, str]] = {"transform": "torchvision_transform"}

    def __init__(
        self,
        columns: list[str],
        transform: Callable[[Any], Any],
        output_columns: list[str] | None = None,
        batched: bool = False,
    ) -> None:
        super().__init__(columns, output_columns)
        self.torchvision_transform = check_callable("transform", transform)
        self.batched = check_bool("batched", batched)

    def _transform_column(self, block: Block, column: str) -> Column:
        images = as_numpy(block.columns[column])
        return self._call(images) if self.batched else column_of([self._call(image) for image in images])

    def _call(self, images: Any) -> np.ndarray[Any, Any]:
        torch = import_framework("torch")
        array = np.array(images)  # a copy: torch would share the memory, and a transform may write to it
        try:
            result = self.torchvision_transform(torch.from_numpy(array))
        except TypeError:
            result = self.torchvision_transform(array)
        if isinstance(result, torch.Tensor):
            result = result.numpy(force=True)
        if not isinstance(result, np.ndarray):
            raise TypeError(f"transform must return a torch.Tensor or an array, got {type(result).__name__}")
        return result
