"""How a framework is set up around the user's function. One folder per framework has its own."""

from __future__ import annotations

import contextlib
import importlib.util
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from paceline._worker.context import Context


class BackendConfig:
    """The plain backend: nothing is set up. Subclasses override `around`."""

    requires: ClassVar[tuple[str, ...]] = ()
    """Modules that have to be installed where workers run."""
    extra: ClassVar[str] = ""
    """The extra of this package that installs them."""
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
        require(type(self).__name__, self.requires, self.extra)


def require(who: str, modules: tuple[str, ...], extra: str) -> None:
    """Refuse where a framework is not installed, naming the extra that installs it. Nothing is imported for it."""
    missing = [module for module in modules if not _is_installed(module)]
    if missing:
        how = f'pip install "paceline[{extra}]"' if extra else f"pip install {' '.join(missing)}"
        raise ImportError(f"{who} needs {' and '.join(missing)}, which is not installed\n\nhint: {how}")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # A package around it is missing, or a test has blocked it.
        return False
