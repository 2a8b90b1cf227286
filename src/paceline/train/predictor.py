"""Apply a trained model to the batches of a dataset: the common part of all frameworks' predictors.

A predictor is a class for `Dataset.map_batches`, which creates one in each process of its pool, so the model is loaded
once per process. Rows keep their order, and `write_parquet(..., resume=True)` lets a killed job resume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from paceline._core.arguments import bad_value
from paceline.train.checkpoint import Checkpoint


class Predictor:
    """Override `call_model`, and `inputs` or `columns` if the model has other inputs or outputs.

    `feature_columns` is one name, whose column the model is called with, or several names, whose columns become one
    matrix. It is optional if there is only one column. `keep_columns`: True keeps the columns of the batch beside the
    predictions, False keeps none, a list keeps those it names.
    """

    def __init__(
        self,
        *,
        feature_columns: str | Sequence[str] | None = None,
        keep_columns: bool | Sequence[str] = True,
        output_column: str = "predictions",
    ) -> None:
        if isinstance(keep_columns, str):
            raise bad_value("keep_columns", "True, False or a list of names", keep_columns)
        self._features = feature_columns
        self._kept_columns = keep_columns
        self._output = output_column

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint | str, *args: Any, **options: Any) -> Self:
        """Same as the constructor."""
        return cls(checkpoint, *args, **options)  # type: ignore[call-arg, arg-type]

    def call_model(self, inputs: Any) -> Any:
        """Return the model's outputs for the value that `inputs` returned."""
        raise NotImplementedError

    def inputs(self, batch: Mapping[str, Any]) -> Any:
        """Return the model's input: an array with one row for each row of the batch."""
        names = self._features if self._features is not None else list(batch)
        if isinstance(names, str):
            return np.asarray(get_column(batch, names))
        if self._features is None and len(names) > 1:
            raise ValueError(
                f"cannot choose the model's inputs among the columns {', '.join(map(repr, names))}\n\n"
                "hint: name them with feature_columns"
            )
        columns = [np.asarray(get_column(batch, name)) for name in names]
        if len(columns) == 1:
            return columns[0]
        return np.concatenate([_to_matrix(name, column) for name, column in zip(names, columns, strict=True)], axis=1)

    def columns(self, outputs: Any) -> dict[str, Any]:
        """Return the model's outputs as arrays by column name."""
        if isinstance(outputs, Mapping):
            return {str(name): self._to_array(value) for name, value in outputs.items()}
        if isinstance(outputs, tuple | list):
            return {f"{self._output}_{number}": self._to_array(value) for number, value in enumerate(outputs)}
        return {self._output: self._to_array(outputs)}

    def _to_array(self, value: Any) -> Any:
        return np.asarray(value)

    def predict(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return only the predictions for a batch: a dict of arrays with one entry per row."""
        predicted = self.columns(self.call_model(self.inputs(batch)))
        num_rows = len(next(iter(batch.values()), ()))
        for name, values in predicted.items():
            if values.shape[:1] != (num_rows,):
                raise ValueError(
                    f"the model must return one entry per row: {name!r} has shape {values.shape} "
                    f"for a batch of {num_rows} rows"
                )
        return predicted

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        names = list(batch) if self._kept_columns is True else list(self._kept_columns or ())
        return {**{name: get_column(batch, name) for name in names}, **self.predict(batch)}


def to_checkpoint(checkpoint: Any) -> Checkpoint:
    """Return the checkpoint passed to a predictor, or the one at a path."""
    if isinstance(checkpoint, Checkpoint):
        return checkpoint
    if isinstance(checkpoint, str):
        return Checkpoint(checkpoint)
    raise TypeError(f"checkpoint must be a paceline.train.Checkpoint or a path, got {checkpoint!r}")


def get_column(batch: Mapping[str, Any], name: str) -> Any:
    """Return a column of a batch. If it is missing, the error lists the columns there are."""
    if name not in batch:
        raise ValueError(f"unknown column {name!r}; the columns are {', '.join(map(repr, batch))}")
    return batch[name]


def _to_matrix(name: str, column: Any) -> Any:
    if column.dtype.kind not in "biuf":
        raise ValueError(f"feature_columns must be numeric, got column {name!r} of type {column.dtype}")
    return column.reshape(len(column), -1)
