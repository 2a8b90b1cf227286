"""How a framework is set up around the user's function. One folder per framework has its own."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from paceline._worker.context import Context


class BackendConfig:
    """The plain backend: nothing is set up. Subclasses override `around`."""

    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that workers should find imported; they must survive a fork after import."""
    preload_later: ClassVar[tuple[str, ...]] = ()
    """Modules that take so long to import that only restarts and later runs find them imported."""
    start_method: ClassVar[str] = "fork"
    """`spawn` for frameworks that must not be imported before a fork."""

    def around(self, context: Context) -> contextlib.AbstractContextManager[None]:
        """Entered in each worker before the user's function, left after it."""
        return contextlib.nullcontext()

    def check(self, num_workers: int, use_gpu: bool) -> None:
        """Refuse what cannot work, before any process starts."""
