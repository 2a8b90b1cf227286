"""Set up a framework around the user's function. Each framework has a folder with its own backend.

As in Ray Train, a custom backend is a `Backend` plus a `BackendConfig` whose `backend_cls` returns it. The backends of
this package override `around` instead.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from paceline._worker.context import WorkerContext
    from paceline.train.worker_group import WorkerGroup


class Backend:
    """Hooks around training. They run in the worker of rank 0.

    Every worker sees all GPUs of its machine; `train.torch.get_device` returns the one assigned to the worker.
    """

    def on_start(self, worker_group: WorkerGroup, backend_config: Any) -> None:
        """Called once the workers are up: `worker_group.execute(function)` calls a function on each of them."""

    def on_training_start(self, worker_group: WorkerGroup, backend_config: Any) -> None:
        """Called just before the train function."""

    def on_shutdown(self, worker_group: WorkerGroup, backend_config: Any) -> None:
        """Called after the train function has returned on every worker. Not called after a failure."""


class BackendConfig:
    """The plain backend, which sets nothing up. Subclasses name their `Backend` with `backend_cls`."""

    requires: ClassVar[tuple[str, ...]] = ()
    """Modules that must be installed where workers run."""
    extra: ClassVar[str] = ""
    """The extra of this package that installs them."""
    preload: ClassVar[tuple[str, ...]] = ()
    """Modules to import before workers fork; they must survive a fork after import."""
    preload_later: ClassVar[tuple[str, ...]] = ()
    """Modules that take so long to import that they are preloaded for restarts and later runs only, and only once a
    worker has imported them."""
    start_method: ClassVar[str] = "fork"
    """`spawn` for frameworks that must not be imported before a fork."""

    @property
    def backend_cls(self) -> type[Backend]:
        """The `Backend` whose hooks run around training."""
        return Backend

    @property
    def framework(self) -> str | None:
        """The name of the framework; None for a backend of your own."""
        return self.extra or None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, as far as they are plain values."""
        values = {each.name: getattr(self, each.name) for each in fields(self)} if is_dataclass(self) else vars(self)
        plain = (bool, int, float, str, tuple, list, dict, type(None))
        return {name: value for name, value in values.items() if isinstance(value, plain)}

    @property
    def train_func_context(self) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        """Return a factory of the context manager that the train function runs in, on each worker."""
        return contextlib.nullcontext

    def around(self, context: WorkerContext) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that each worker enters before the user's function and leaves after it."""
        backend, within = self.backend_cls, self.train_func_context
        if backend is Backend and within is contextlib.nullcontext:
            return contextlib.nullcontext()
        from paceline.train.worker_group import run_backend

        return run_backend(context, backend(), self)

    def check(self, num_workers: int, use_gpu: bool) -> None:
        """Raise on an impossible configuration, before any process starts."""
        require(type(self).__name__, self.requires, self.extra)


def require(who: str, modules: tuple[str, ...], extra: str) -> None:
    """Raise if a framework is not installed, and name the extra that installs it. Imports nothing."""
    missing = [module for module in modules if not is_installed(module)]
    if missing:
        how = f'pip install "paceline[{extra}]"' if extra else f"pip install {' '.join(missing)}"
        raise ImportError(f"{who} needs {' and '.join(missing)}, which is not installed\n\nhint: {how}")


def is_installed(module: str) -> bool:
    """Whether a module can be imported; does not import it. A plain directory of that name does not count."""
    try:
        spec = importlib.util.find_spec(module)
        return spec is not None and spec.origin is not None
    except (ImportError, ValueError):  # A parent package is missing, or a test has blocked it.
        return False
