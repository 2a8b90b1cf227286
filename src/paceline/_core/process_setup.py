"""Sets up processes: the driver, whoever started it, and those that we started, which inherit state when forked."""

import atexit
import contextlib
import faulthandler
import gc
import importlib
import importlib.util
import logging
import multiprocessing.util
import os
import sys
import weakref
from collections.abc import Iterable


def prepare_driver() -> None:
    """Prepare this process to start others, however it was started itself."""
    _fill_stdio()
    script = sys.modules.get("__mp_main__")
    if script is not None and script.__name__ == "__mp_main__":
        # A child that `multiprocessing` spawned: its script has a name that no other process can import.
        import cloudpickle

        cloudpickle.register_pickle_by_value(script)


def _fill_stdio() -> None:
    """Open what is closed of descriptors 0 to 2: a socket of ours there would get what other code prints."""
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return
        os.set_inheritable(fd, True)


def redirect_stdio(log_fd: int) -> None:
    flush_stdio()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    for fd in (null, log_fd):
        if fd > 2:
            os.close(fd)
    # A crash in C code then leaves the Python line where it happened.
    faulthandler.enable(2)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def flush_stdio() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def reset_exit_handlers() -> None:
    """Keep only the exit handlers that matter to what this worker itself does.

    Libraries that were imported before the fork registered theirs for the parent process.
    """
    drop_exit_handlers()
    for handler in (weakref.finalize._exitfunc, logging.shutdown, multiprocessing.util._exit_function):  # type: ignore[attr-defined]
        atexit.register(handler)


def drop_exit_handlers() -> None:
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]


def reseed_generators() -> None:
    """Reseed, or a forked worker would draw the same numbers as its siblings. (Python reseeds `random` by itself.)"""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def preload_modules(modules: Iterable[str]) -> None:
    """Import the modules that exist. Errors are only printed: the worker will raise them where a person sees them.

    The garbage collector neither runs meanwhile nor looks at the objects of these modules later. Nearly all of them
    live as long as the process: for torch, collections take a tenth of the time of the import.
    """
    gc.disable()
    try:
        for module in modules:
            try:
                if importlib.util.find_spec(module) is not None:
                    importlib.import_module(module)
            except Exception as error:  # noqa: BLE001
                print(f"paceline: {module} could not be imported ahead: {error!r}", file=sys.stderr)
        gc.freeze()
    finally:
        gc.enable()
