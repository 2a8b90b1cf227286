"""Objects that remember what they were made with, so that a journal can say how to make one like them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self


class Made:
    """Base of searchers and schedulers. What is remembered is as it was given, not what became of it."""

    made_with: tuple[tuple[Any, ...], Mapping[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        made.made_with = args, kwargs
        return made
