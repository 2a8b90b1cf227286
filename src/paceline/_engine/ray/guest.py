"""Ray inside the user's function: the worker's process is no worker of Ray's, so it connects as a guest of the cluster.

A job whose pickle names something of Ray (an actor handle, a remote function, an object reference) is loaded with Ray
connected. In any other, Ray connects by itself at its first use. Both go through `ray.init`, which here knows the
cluster and the driver's namespace, keeps quiet, and leaves the signals of a worker alone.
"""

from __future__ import annotations

import contextlib
import copyreg
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import pickletools
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from types import ModuleType
from typing import Any

from paceline._engine.messages import Guest
from paceline._engine.ray.connect import CONNECTING, imported

_TEXTS = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE")
_NOTED = ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT")
_RECALLED = ("GET", "BINGET", "LONG_BINGET")
_NOTICES = (signal.SIGTERM, signal.SIGINT)
_PICKLING = threading.RLock()


def mentions_ray(job: bytes) -> bool:
    """Whether a pickle leads to Ray's modules; texts that only look like it do not count."""
    if not any(sign in job for sign in (b"\x03ray", b"ray.", b"cray\n")):
        return False
    memo: dict[int, str] = {}
    top: deque[str] = deque(["", ""], maxlen=4)
    """What was pushed last: a text, or the name of a module's member."""
    for opcode, argument, _ in pickletools.genops(job):
        name = opcode.name
        if name in _TEXTS:
            top.append(str(argument))
        elif name in _RECALLED:
            top.append(memo.get(int(str(argument)), ""))
        elif name in _NOTED:
            memo[len(memo) if argument is None else int(str(argument))] = top[-1]
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            module, member = str(argument).split(" ") if name == "GLOBAL" else (top[-2], top[-1])
            if _is_ray(module):
                return True
            top.append(f"{module}:{member}")
        elif name == "REDUCE" and top[-2].endswith(":subimport") and _is_ray(top[-1]):
            return True  # A module that a function uses, as cloudpickle has it.
        elif name != "TUPLE1":
            top.append("")
    return False


@contextlib.contextmanager
def references_kept() -> Iterator[None]:
    """While a job is pickled: references to Ray's objects keep their owner, without whom they are found nowhere."""
    ray = imported()
    with _PICKLING:  # Of many runs at once, the first to end would take the way of the others from them.
        yield from _kept(ray)


def _kept(ray: Any) -> Iterator[None]:
    def reduced(reference: Any) -> tuple[Any, ...]:
        return ray.cloudpickle.loads, (ray.cloudpickle.dumps(reference),)

    before = copyreg.dispatch_table.get(ray.ObjectRef)
    copyreg.pickle(ray.ObjectRef, reduced)
    try:
        yield
    finally:
        if before is None:
            del copyreg.dispatch_table[ray.ObjectRef]
        else:
            copyreg.dispatch_table[ray.ObjectRef] = before


def welcome(guest: Guest) -> None:
    """In the worker's process: let Ray find the cluster when it is used; now, where the job needs it to be loaded."""
    if "ray" in sys.modules:
        _prepare(sys.modules["ray"], guest)
    else:
        sys.meta_path.insert(0, _Doorman(lambda ray: _prepare(ray, guest)))
    if guest.at_once:
        imported().init()


def _prepare(ray: ModuleType, guest: Guest) -> None:
    init = ray.init

    @wraps(init)
    def quiet(*given: str | None, **options: Any) -> Any:
        if not given and options.get("address") is None:
            options["address"] = guest.address
        options.setdefault("namespace", guest.namespace)
        options.setdefault("log_to_driver", False)
        options.setdefault("logging_level", logging.ERROR)
        options.setdefault("configure_logging", False)
        options.setdefault("ignore_reinit_error", True)  # rows of datasets may have connected this process before
        with CONNECTING, _signals_kept():
            return init(*given, **options)

    ray.init = quiet  # type: ignore[attr-defined]


class _Doorman(importlib.abc.MetaPathFinder):
    """Sees Ray come in, and is gone."""

    def __init__(self, prepare: Callable[[ModuleType], None]) -> None:
        self._prepare = prepare

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "ray":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            self._prepare(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself, by which a worker is told that its machine is about to be taken away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.getsignal(signum) for signum in _NOTICES}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _is_ray(module: str) -> bool:
    return module == "ray" or module.startswith("ray.")
