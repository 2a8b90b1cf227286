"""TensorflowPredictor: a checkpoint's model as a class for `Dataset.map_batches`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paceline._core import settings
from paceline.train.checkpoint import Checkpoint
from paceline.train.tensorflow.checkpoint import TensorflowCheckpoint
from paceline.train.tensorflow.config import give_threads


class TensorflowPredictor:
    """Adds what a model predicts to each batch. The model is loaded once in each process.

        predicted = dataset.map_batches(
            TensorflowPredictor, fn_constructor_args=[result.checkpoint], concurrency=2, batch_size=256
        )

    `feature_columns`: one name, whose column is what the model is called with, or several, which go as a dict; by
    default the only column, or all. What the model gives is the column `output_column`, or one for each name where it
    gives a dict. The columns of the batch are kept, unless `keep_columns=False`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | str,
        *,
        feature_columns: str | Sequence[str] | None = None,
        output_column: str = "predictions",
        keep_columns: bool = True,
        custom_objects: Mapping[str, Any] | None = None,
    ) -> None:
        from paceline.train.tensorflow import quiet  # noqa: F401  TensorFlow without its greeting

        # Each of many processes would otherwise compute with all cores.
        threads = settings.load().omp_num_threads or ""
        if threads.isdigit() and int(threads) > 0:
            give_threads(int(threads))
        given = Checkpoint(checkpoint) if isinstance(checkpoint, str) else checkpoint
        if not isinstance(given, Checkpoint):
            raise TypeError(f"checkpoint={checkpoint!r} is not a paceline.train.Checkpoint")
        self.model = TensorflowCheckpoint(given.path, given.filesystem).get_model(
            custom_objects=custom_objects, compile=False
        )
        self._features = feature_columns
        self._output = output_column
        self._keeps = keep_columns

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint | str, **kwargs: Any) -> TensorflowPredictor:
        """The same as the constructor."""
        return cls(checkpoint, **kwargs)

    def predict(self, data: Mapping[str, Any] | Any) -> dict[str, Any]:
        """What the model gives for a batch: a dict of arrays, or one array."""
        predicted = self.call_model(self._picked(data) if isinstance(data, Mapping) else data)
        if isinstance(predicted, Mapping):
            return {str(name): np.asarray(value) for name, value in predicted.items()}
        return {self._output: np.asarray(predicted)}

    def call_model(self, inputs: Any) -> Any:
        """Where a model needs more than to be called with its input, override this."""
        call = self.model if callable(self.model) else getattr(self.model, "serve", None)
        if call is None:
            call = self.model.signatures["serving_default"]
        return call(inputs)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        predicted = self.predict(batch)
        return {**batch, **predicted} if self._keeps else predicted

    def _picked(self, batch: Mapping[str, Any]) -> Any:
        names = self._features if self._features is not None else [*batch]
        if isinstance(names, str) or len(names) == 1:
            return _column(batch, names if isinstance(names, str) else names[0])
        return {name: _column(batch, name) for name in names}


def _column(batch: Mapping[str, Any], name: str) -> Any:
    if name not in batch:
        raise ValueError(f"feature_columns names the column {name!r}, but the columns are: {', '.join(batch)}")
    return batch[name]
