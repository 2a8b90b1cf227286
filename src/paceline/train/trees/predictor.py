"""Apply a trained tree model to the batches of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from paceline.train.checkpoint import Checkpoint
from paceline.train.predictor import Predictor, to_checkpoint
from paceline.train.trees.reports import TreeReportCallback
from paceline.train.trees.tables import Categories, make_matrix


class TreePredictor(Predictor):
    """A class for `Dataset.map_batches`: each process loads the model once.

    Adds the column `output_column` to each batch. `feature_columns` defaults to the names the model was trained with,
    if it knows them. `keep_columns`: True keeps all columns of the batch, False none, a list the named ones. Other
    arguments are passed to the library's own `predict`.
    """

    callback_class: ClassVar[type[TreeReportCallback]]

    def __init__(
        self,
        checkpoint: Checkpoint | str,
        *,
        feature_columns: str | Sequence[str] | None = None,
        keep_columns: bool | Sequence[str] = True,
        output_column: str = "predictions",
        filename: str | None = None,
        **predict_kwargs: Any,
    ) -> None:
        super().__init__(
            feature_columns=[feature_columns] if isinstance(feature_columns, str) else feature_columns,
            keep_columns=keep_columns,
            output_column=output_column,
        )
        self.model = self._read(to_checkpoint(checkpoint), filename)
        self._predict_kwargs = predict_kwargs
        self._codes = {
            name: {category: index for index, category in enumerate(categories)}
            for name, categories in self._list_categories().items()
        }

    def inputs(self, batch: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        trained = self._feature_names()
        columns = self._features if self._features is not None else _source_columns(trained, list(batch))
        missing = [name for name in columns if name not in batch]
        if missing:
            raise ValueError(
                f"the batch has no column {missing[0]!r}, which the model was trained with; the columns are "
                f"{', '.join(map(repr, batch))}\n\n"
                "hint: a model that was trained without names needs feature_columns=[...], in the order of training"
            )
        matrix, names = make_matrix(batch, columns, "the batch", self._codes)
        if trained is not None and self._features is None:
            positions = {name: number for number, name in enumerate(names)}
            matrix = matrix[:, [positions[name] for name in trained]]
        return matrix

    def call_model(self, inputs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if not len(inputs):
            # Libraries reject empty input; the prediction for one row has the right shape and type.
            return self._predict_matrix(np.zeros((1, inputs.shape[1]), inputs.dtype))[:0]
        return self._predict_matrix(inputs)

    def _read(self, checkpoint: Checkpoint, filename: str | None) -> Any:
        return self.callback_class.get_model(checkpoint, filename)

    def _feature_names(self) -> list[str] | None:
        """Return the feature names the model was trained with, or None."""
        raise NotImplementedError

    def _list_categories(self) -> Categories:
        """Return the categories that the model was trained with; any other counts as missing."""
        return {}

    def _predict_matrix(self, matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        raise NotImplementedError


def _source_columns(features: list[str] | None, batch: list[str]) -> list[str]:
    """Return the batch columns that features come from: `image_7` is an element of the column `image`."""
    if features is None:
        return batch
    columns: dict[str, None] = {}
    for name in features:
        array = name.rpartition("_")[0]
        columns[array if name not in batch and array in batch else name] = None
    return list(columns)
