"""How a framework is set up around the user's function. One folder per framework has its own.

A backend of the user's own is a `Backend` with a `BackendConfig` whose `backend_cls` it is, as in Ray Train; those of
this package override `around` instead.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from paceline._worker.context import Context
    from paceline.train.worker_group import WorkerGroup


class Backend:
    """What is done on the workers around training. Its methods run in the worker of rank 0.

    The GPUs of a machine are visible to all workers on it; `train.torch.get_device` tells which is whose.
    """

    def on_start(self, worker_group: WorkerGroup, backend_config: Any) -> None:
        """The workers are there: `worker_group.execute(function)` calls a function on each of them."""

    def on_training_start(self, worker_group: WorkerGroup, backend_config: Any) -> None:
        """The train function is about to be called."""

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: Any) -> None:
        """The train function has returned on every worker. Not called after a failure."""


class BackendConfig:
    """The plain backend: nothing is set up. Subclasses say which `Backend` is theirs with `backend_cls`."""

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

    @property
    def backend_cls(self) -> type[Backend]:
        """What is done around training on all workers."""
        return Backend

    @property
    def train_func_context(self) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        """Makes a context that the train function runs in, on each worker."""
        return contextlib.nullcontext

    def around(self, context: Context) -> contextlib.AbstractContextManager[None]:
        """Entered in each worker before the user's function, left after it."""
        backend, within = self.backend_cls, self.train_func_context
        if backend is Backend and within is contextlib.nullcontext:
            return contextlib.nullcontext()
        from paceline.train.worker_group import led

        return led(context, backend(), self)

    def check(self, num_workers: int, use_gpu: bool) -> None:
        """Refuse what cannot work, before any process starts."""
        require(type(self).__name__, self.requires, self.extra)


def require(who: str, modules: tuple[str, ...], extra: str) -> None:
    """Refuse where a framework is not installed, naming the extra that installs it. Nothing is imported for it."""
    missing = [module for module in modules if not is_installed(module)]
    if missing:
        how = f'pip install "paceline[{extra}]"' if extra else f"pip install {' '.join(missing)}"
        raise ImportError(f"{who} needs {' and '.join(missing)}, which is not installed\n\nhint: {how}")


def is_installed(module: str) -> bool:
    """Whether a module could be imported; nothing is. A mere directory of that name, as one may lie about, is none."""
    try:
        found = importlib.util.find_spec(module)
        return found is not None and found.origin is not None
    except (ImportError, ValueError):  # A package around it is missing, or a test has blocked it.
        return False
