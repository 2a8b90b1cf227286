"""A trained model over the batches of a dataset: what predictors of all frameworks have in common.

A predictor is a class for `Dataset.map_batches`, which makes one in each process of its pool: the model is loaded once
there. Rows keep their order, and `write_parquet(..., resume=True)` lets a job that is killed go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paceline.train.checkpoint import Checkpoint


class Predictor:
    """Override `call_model`; `inputs` and `columns` where a model takes or gives something else.

    `feature_columns`: one name, whose column the model is called with, or several, which become one array of so many
    columns; not needed where there is only one column. `keep_columns`: True keeps those of the batch beside what is
    predicted, False none, a list those it names.
    """

    def __init__(
        self,
        *,
        feature_columns: str | Sequence[str] | None = None,
        keep_columns: bool | Sequence[str] = True,
        output_column: str = "predictions",
    ) -> None:
        if isinstance(keep_columns, str):
            raise ValueError(f"keep_columns={keep_columns!r} must be True, False or a list: [{keep_columns!r}]")
        self._features = feature_columns
        self._kept = keep_columns
        self._output = output_column

    def call_model(self, inputs: Any) -> Any:
        """What the model gives for what `inputs` made of a batch."""
        raise NotImplementedError

    def inputs(self, batch: Mapping[str, Any]) -> Any:
        """What the model is called with: an array with a row for each of the batch."""
        names = self._features if self._features is not None else list(batch)
        if isinstance(names, str):
            return np.asarray(column_of(batch, names))
        if self._features is None and len(names) > 1:
            raise ValueError(
                f"the batch has the columns {', '.join(map(repr, names))}, and nothing says which the model takes\n\n"
                "hint: name them with feature_columns"
            )
        columns = [np.asarray(column_of(batch, name)) for name in names]
        if len(columns) == 1:
            return columns[0]
        return np.concatenate([_flat(name, column) for name, column in zip(names, columns, strict=True)], axis=1)

    def columns(self, outputs: Any) -> dict[str, Any]:
        """What the model gave, as arrays by the name of their column."""
        if isinstance(outputs, Mapping):
            return {str(name): np.asarray(value) for name, value in outputs.items()}
        if isinstance(outputs, tuple | list):
            return {f"{self._output}_{number}": np.asarray(value) for number, value in enumerate(outputs)}
        return {self._output: np.asarray(outputs)}

    def predict(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The predictions for a batch alone: a dict of arrays with an entry for each row."""
        predicted = self.columns(self.call_model(self.inputs(batch)))
        num_rows = len(next(iter(batch.values()), ()))
        for name, values in predicted.items():
            if values.shape[:1] != (num_rows,):
                raise ValueError(
                    f"the model gave {name!r} of shape {values.shape} for a batch of {num_rows} rows: "
                    "it has to have an entry for each row"
                )
        return predicted

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        names = list(batch) if self._kept is True else list(self._kept or ())
        return {**{name: column_of(batch, name) for name in names}, **self.predict(batch)}


def checkpoint_of(given: Any) -> Checkpoint:
    """The checkpoint that a predictor was given, or the one at a path."""
    if isinstance(given, Checkpoint):
        return given
    if isinstance(given, str):
        return Checkpoint(given)
    raise TypeError(f"checkpoint={given!r} is not a paceline.train.Checkpoint")


def column_of(batch: Mapping[str, Any], name: str) -> Any:
    """A column of a batch; one that is not there is named, with those that are."""
    if name not in batch:
        raise ValueError(f"there is no column {name!r} in the batch, which has {', '.join(map(repr, batch))}")
    return batch[name]


def _flat(name: str, column: Any) -> Any:
    """As columns of one matrix."""
    if column.dtype.kind not in "biuf":
        raise ValueError(f"feature_columns: the column {name!r} is of type {column.dtype}, which is no number")
    return column.reshape(len(column), -1)
