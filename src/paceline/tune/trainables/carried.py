"""A function or class on its way to the workers of many trials: pickled once, and loaded in each of them."""

from __future__ import annotations

import functools
import logging
from typing import Any

import cloudpickle

from paceline.train.backend import BackendConfig
from paceline.train.job import pickled_job

_LARGE = 20_000_000

log = logging.getLogger("paceline")


class Carried:
    """Has `value` in whichever process it is."""

    def __init__(self, data: bytes, original: Any = None) -> None:
        self._data = data
        self.original = original
        """What was pickled, in the process that did that."""

    @functools.cached_property
    def value(self) -> Any:
        value, _, _ = cloudpickle.loads(self._data)
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return Carried, (self._data,)


def carried(value: Any, name: str) -> Carried:
    """Pickled, as it is now; what does not pickle is named."""
    try:
        data = pickled_job(value, None, BackendConfig())
    except TypeError as error:
        text = str(error).replace("train_loop_per_worker", name)
        raise TypeError(text) from error.__cause__
    if len(data) > _LARGE:
        log.warning(
            "%s carries %d MB to every trial\n\nhint: tune.with_parameters(%s, data=...) shares large objects",
            name,
            len(data) // 1_000_000,
            name,
        )
    return Carried(data, value)
