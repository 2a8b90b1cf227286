"""JaxPredictor: a checkpoint applied to the batches of a dataset, in as many processes as one likes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.train.backend import require
from paceline.train.checkpoint import Checkpoint
from paceline.train.jax.checkpoint import OrbaxCheckpoint


class JaxPredictor:
    """A class for `Dataset.map_batches`: each of its processes loads the parameters once and compiles once.

        predictions = dataset.map_batches(
            JaxPredictor,
            fn_constructor_kwargs={"checkpoint": result.checkpoint, "apply": predict, "params": "params"},
            batch_size=1024,
            concurrency=2,
        )

    `apply(params, batch)` is a pure function of the parameters and a dict of arrays; it returns an array, which becomes
    the column `predictions`, or a dict of them. The columns that were read are kept beside it. `params` names the entry
    of the checkpoint's tree that it is given, as `params` or `model/params`; None is the whole tree.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        apply: Callable[[Any, dict[str, Any]], Any],
        *,
        params: str | None = None,
        columns: Sequence[str] | None = None,
        keep_columns: bool = True,
        jit: bool = True,
    ) -> None:
        """`columns` are those that the function is given; all by default. A batch that is shorter than the first, as
        the last of a file may be, is filled up to its length, so that nothing is compiled again for it.
        """
        if not isinstance(checkpoint, Checkpoint):
            raise TypeError(f"checkpoint={checkpoint!r} is not a paceline.train.Checkpoint")
        if not callable(apply):
            raise TypeError(f"apply={apply!r} is not a function of the parameters and a batch")
        require(type(self).__name__, ("jax",), "jax")
        import jax

        self._columns = tuple(columns) if columns is not None else None
        self._keep = keep_columns
        self._params = jax.device_put(_entry(_tree(checkpoint), params))
        self._apply = jax.jit(apply) if jit else apply
        self._num_rows = 0

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        import jax
        import numpy as np

        given = {name: _numbers(name, np.asarray(batch[name])) for name in (self._columns or batch)}
        num_rows = len(next(iter(given.values())))
        self._num_rows = max(self._num_rows, num_rows)
        filled = {name: _filled(values, self._num_rows) for name, values in given.items()}
        made = self._apply(self._params, filled)
        columns = jax.device_get(dict(made) if isinstance(made, Mapping) else {"predictions": made})
        predicted = {name: np.asarray(values) for name, values in columns.items()}
        for name, values in predicted.items():
            if values.shape[:1] != (self._num_rows,):
                raise ValueError(
                    f"apply returned {name!r} of shape {values.shape} for a batch of {self._num_rows} rows: "
                    "it has to have an entry for each row"
                )
        return {**(batch if self._keep else {}), **{name: values[:num_rows] for name, values in predicted.items()}}


def _tree(checkpoint: Checkpoint) -> Any:
    with checkpoint.as_directory() as directory:
        by_orbax = (Path(directory) / OrbaxCheckpoint.DIRECTORY).is_dir()
        return OrbaxCheckpoint(directory).get_pytree() if by_orbax else Checkpoint(directory).to_dict()


def _numbers(name: str, values: Any) -> Any:
    if values.dtype.kind not in "biufc":
        raise TypeError(
            f"the column {name!r} is of type {values.dtype}, of which JAX has no arrays\n\n"
            "hint: name the columns that the function needs with columns=[...]"
        )
    return values


def _entry(tree: Any, name: str | None) -> Any:
    if name is None:
        return tree
    entry = tree
    for key in name.split("/"):
        if not isinstance(entry, Mapping) or key not in entry:
            have = ", ".join(map(repr, entry)) if isinstance(entry, Mapping) else f"a {type(entry).__name__}"
            raise ValueError(f"params={name!r}: the checkpoint has no {key!r} there, but {have}")
        entry = entry[key]
    return entry


def _filled(values: Any, num_rows: int) -> Any:
    """With copies of its last row: any row will do, as what becomes of it is cut off."""
    import numpy as np

    missing = num_rows - len(values)
    return np.concatenate([values, np.repeat(values[-1:], missing, axis=0)]) if missing and len(values) else values
