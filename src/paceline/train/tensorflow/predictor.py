"""TensorflowPredictor: a checkpoint's model as a class for `Dataset.map_batches`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline._core import settings
from paceline.train.checkpoint import Checkpoint
from paceline.train.predictor import Predictor, get_column, to_checkpoint
from paceline.train.tensorflow.checkpoint import TensorflowCheckpoint
from paceline.train.tensorflow.config import set_num_threads


class TensorflowPredictor(Predictor):
    """Adds the model's predictions to each batch. Each process loads the model once.

        predicted = dataset.map_batches(
            TensorflowPredictor, fn_constructor_args=[result.checkpoint], concurrency=2, batch_size=256
        )

    `feature_columns`: one name, whose column is passed to the model, or several, passed as a dict; by default the only
    column, or all. The result becomes the column `output_column`, or one column per name if the model returns a dict.
    `keep_columns`: True keeps all columns of the batch, False none, a list the named ones.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | str,
        *,
        feature_columns: str | Sequence[str] | None = None,
        output_column: str = "predictions",
        keep_columns: bool | Sequence[str] = True,
        custom_objects: Mapping[str, Any] | None = None,
    ) -> None:
        from paceline.train.tensorflow import quiet_import  # noqa: F401

        super().__init__(feature_columns=feature_columns, keep_columns=keep_columns, output_column=output_column)
        # Otherwise each of many processes would use all cores.
        threads = settings.load().omp_num_threads or ""
        if threads.isdigit() and int(threads) > 0:
            set_num_threads(int(threads))
        source = to_checkpoint(checkpoint)
        self.model = TensorflowCheckpoint(source.path, source.filesystem).get_model(
            custom_objects=custom_objects, compile=False
        )

    def inputs(self, batch: Mapping[str, Any]) -> Any:
        names = self._features if self._features is not None else [*batch]
        if isinstance(names, str) or len(names) == 1:
            return get_column(batch, names if isinstance(names, str) else names[0])
        return {name: get_column(batch, name) for name in names}

    def call_model(self, inputs: Any) -> Any:
        """Call the model. Override this if the model needs more than its inputs."""
        call = self.model if callable(self.model) else getattr(self.model, "serve", None)
        if call is None:
            call = self.model.signatures["serving_default"]
        return call(inputs)

    def predict(self, batch: Mapping[str, Any] | Any) -> dict[str, Any]:
        """Return the model's predictions for a batch: a dict of arrays, or one array."""
        return super().predict(batch) if isinstance(batch, Mapping) else self.columns(self.call_model(batch))
