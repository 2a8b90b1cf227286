"""JaxPredictor: apply a checkpoint to the batches of a dataset, in any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.train.backend import require
from paceline.train.checkpoint import Checkpoint
from paceline.train.jax.checkpoint import OrbaxCheckpoint
from paceline.train.predictor import Predictor, to_checkpoint


class JaxPredictor(Predictor):
    """A class for `Dataset.map_batches`: each of its processes loads the parameters once and compiles once.

        predictions = dataset.map_batches(
            JaxPredictor,
            fn_constructor_kwargs={"checkpoint": result.checkpoint, "apply": predict, "params": "params"},
            batch_size=1024,
            concurrency=2,
        )

    `apply(params, inputs)` is a pure function. Its inputs are a dict of all columns or, with `feature_columns`, one
    array as described in `Predictor`. It returns an array with one entry per row, or a dict of such arrays. `params`
    names the entry of the checkpoint's tree to pass, such as `params` or `model/params`; None passes the whole tree.

    A batch shorter than earlier ones, such as the last of a file, is padded with copies of its last row to avoid
    recompilation. The result for a row must therefore not depend on other rows.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | str,
        apply: Callable[[Any, Any], Any],
        *,
        params: str | None = None,
        feature_columns: str | Sequence[str] | None = None,
        keep_columns: bool | Sequence[str] = True,
        output_column: str = "predictions",
        jit: bool = True,
    ) -> None:
        super().__init__(feature_columns=feature_columns, keep_columns=keep_columns, output_column=output_column)
        checkpoint = to_checkpoint(checkpoint)
        if not callable(apply):
            raise TypeError(f"apply must be a function of the parameters and a batch, got {apply!r}")
        require(type(self).__name__, ("jax",), "jax")
        import jax

        self.params = jax.device_put(_select_entry(_load_tree(checkpoint), params))
        self._apply = jax.jit(apply) if jit else apply
        self._num_rows = 0

    def inputs(self, batch: Mapping[str, Any]) -> Any:
        if self._features is not None:
            return super().inputs(batch)
        return {name: _check_numeric(name, np.asarray(values)) for name, values in batch.items()}

    def call_model(self, inputs: Any) -> Any:
        import jax

        num_rows = len(jax.tree.leaves(inputs)[0])
        self._num_rows = num_filled = max(self._num_rows, num_rows)
        filled = jax.tree.map(lambda values: _pad_rows(values, num_filled), inputs)
        outputs = jax.device_get(self._apply(self.params, filled))
        return jax.tree.map(
            lambda values: values[:num_rows] if np.shape(values)[:1] == (num_filled,) else values, outputs
        )


def _load_tree(checkpoint: Checkpoint) -> Any:
    with checkpoint.as_directory() as directory:
        by_orbax = (Path(directory) / OrbaxCheckpoint.DIRECTORY).is_dir()
        return OrbaxCheckpoint(directory).get_pytree() if by_orbax else Checkpoint(directory).to_dict()


def _select_entry(tree: Any, name: str | None) -> Any:
    entry = tree
    for key in name.split("/") if name is not None else ():
        if not isinstance(entry, Mapping) or key not in entry:
            have = ", ".join(map(repr, entry)) if isinstance(entry, Mapping) else f"a {type(entry).__name__}"
            raise ValueError(f"params={name!r}: the checkpoint has no {key!r}, only {have}")
        entry = entry[key]
    return entry


def _check_numeric(name: str, values: Any) -> Any:
    if values.dtype.kind not in "biufc":
        raise TypeError(
            f"JAX cannot hold the column {name!r} of type {values.dtype}\n\n"
            "hint: name the columns that the function takes in feature_columns"
        )
    return values


def _pad_rows(values: Any, num_rows: int) -> Any:
    missing = num_rows - len(values)
    return np.concatenate([values, np.repeat(values[-1:], missing, axis=0)]) if missing and len(values) else values
