"""A function or class for the workers of many trials: pickled once, and loaded in each worker."""

from __future__ import annotations

import functools
import logging
from typing import Any

import cloudpickle

from paceline.train.backend import BackendConfig
from paceline.train.job import pickle_job

_LARGE_BYTES = 20_000_000

log = logging.getLogger("paceline")


class PickledTrainable:
    """Gives `value` in any process."""

    def __init__(self, data: bytes, original: Any = None) -> None:
        self._data = data
        self.original = original
        """The pickled object, in the process that pickled it."""

    @functools.cached_property
    def value(self) -> Any:
        value, _, _ = cloudpickle.loads(self._data)
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return PickledTrainable, (self._data,)


def pickle_trainable(value: Any, name: str) -> PickledTrainable:
    """Pickle the value as it is now; an error names what does not pickle."""
    try:
        data = pickle_job(value, None, BackendConfig())
    except TypeError as error:
        text = str(error).replace("train_loop_per_worker", name)
        raise TypeError(text) from error.__cause__
    if len(data) > _LARGE_BYTES:
        log.warning(
            "%s carries %d MB to every trial\n\nhint: tune.with_parameters(%s, data=...) shares large objects",
            name,
            len(data) // 1_000_000,
            name,
        )
    return PickledTrainable(data, value)
