"""Prediction with a trained model of trees over the batches of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from paceline.train.checkpoint import Checkpoint
from paceline.train.trees.tables import matrix_of


class TreePredictor:
    """A class for `Dataset.map_batches`: the model is read once in each process.

    A batch comes back as its `keep_columns` and the column `predictions`. `feature_columns` are by default those that
    the model was trained with, by name, where it knows them; more arguments are for the library's own `predict`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        feature_columns: Sequence[str] | None = None,
        keep_columns: Sequence[str] = (),
        filename: str | None = None,
        **predict_kwargs: Any,
    ) -> None:
        self.model = self._read(checkpoint, filename)
        self._columns = list(feature_columns) if feature_columns is not None else None
        self._kept = list(keep_columns)
        self._predict_kwargs = predict_kwargs

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, **options: Any) -> Self:
        return cls(checkpoint, **options)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        missing = [name for name in self._kept if name not in batch]
        if missing:
            raise KeyError(f"keep_columns names {missing[0]!r}; the batch has: {', '.join(map(repr, batch))}")
        return {**{name: batch[name] for name in self._kept}, "predictions": self.predict(batch)}

    def predict(self, batch: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """A prediction for each row of a batch: a dict of arrays, or a DataFrame."""
        known = self._feature_names()
        columns = self._columns if self._columns is not None else _holding(known, list(batch))
        missing = [name for name in columns if name not in batch]
        if missing:
            raise KeyError(
                f"the batch has no column {missing[0]!r}, which the model was trained with; there are: "
                f"{', '.join(map(repr, batch))}\n\n"
                "hint: a model that was trained without names needs feature_columns=[...], in the order of training"
            )
        matrix, names = matrix_of(batch, columns, "the batch")
        if known is not None and self._columns is None:
            places = {name: number for number, name in enumerate(names)}
            matrix = matrix[:, [places[name] for name in known]]
        if not len(matrix):
            # Libraries refuse it; what one row would give has the right shape and type.
            return self._predicted(np.zeros((1, matrix.shape[1]), matrix.dtype))[:0]
        return self._predicted(matrix)

    def _read(self, checkpoint: Checkpoint, filename: str | None) -> Any:
        raise NotImplementedError

    def _feature_names(self) -> list[str] | None:
        """The names that the model was trained with; None where it has none."""
        raise NotImplementedError

    def _predicted(self, matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        raise NotImplementedError


def _holding(known: list[str] | None, there: list[str]) -> list[str]:
    """The columns of a batch that features come from: `image_7` is an element of the column `image`."""
    if known is None:
        return there
    columns: dict[str, None] = {}
    for name in known:
        around = name.rpartition("_")[0]
        columns[around if name not in there and around in there else name] = None
    return list(columns)
