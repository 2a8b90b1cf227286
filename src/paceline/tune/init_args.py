"""Objects that record their constructor arguments, so that a journal can describe how to recreate them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self


class RecordsInitArgs:
    """Base of searchers and schedulers. Records the arguments as given, before any processing."""

    init_args: tuple[tuple[Any, ...], Mapping[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        made.init_args = args, kwargs
        return made
