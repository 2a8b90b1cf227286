"""Ray inside the user's function: the worker is not a Ray worker process, so it connects to the cluster by itself.

A job whose pickle refers to Ray is loaded with Ray connected; otherwise Ray connects at its first use. Both go through
`ray.init`, which is patched to know the cluster and to leave logging and the worker's signal handlers alone.
"""

from __future__ import annotations

import contextlib
import copyreg
import importlib.abc
import importlib.machinery
import importlib.util
import pickletools
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from types import ModuleType
from typing import Any

from paceline._engine.messages import RayConnectionSpec
from paceline._engine.ray.connection import CONNECT_LOCK, QUIET_OPTIONS, import_ray

_TEXT_OPCODES = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE")
_STORE_OPCODES = ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT")
_RECALL_OPCODES = ("GET", "BINGET", "LONG_BINGET")
_PRESERVED_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PICKLE_LOCK = threading.RLock()


def has_ray_references(job: bytes) -> bool:
    """Whether a pickle imports Ray's modules; strings that only look like it do not count."""
    if not any(sign in job for sign in (b"\x03ray", b"ray.", b"cray\n")):
        return False
    memo: dict[int, str] = {}
    top: deque[str] = deque(["", ""], maxlen=4)
    """What was pushed last: a string, or the name of a module's member."""
    for opcode, argument, _ in pickletools.genops(job):
        name = opcode.name
        if name in _TEXT_OPCODES:
            top.append(str(argument))
        elif name in _RECALL_OPCODES:
            top.append(memo.get(int(str(argument)), ""))
        elif name in _STORE_OPCODES:
            memo[len(memo) if argument is None else int(str(argument))] = top[-1]
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            module, member = str(argument).split(" ") if name == "GLOBAL" else (top[-2], top[-1])
            if _is_ray(module):
                return True
            top.append(f"{module}:{member}")
        elif name == "REDUCE" and top[-2].endswith(":subimport") and _is_ray(top[-1]):
            return True  # A module that a function uses, as cloudpickle encodes it.
        elif name != "TUPLE1":
            top.append("")
    return False


@contextlib.contextmanager
def keep_reference_owners() -> Iterator[None]:
    """While a job is pickled, keep the owners of Ray object references: without them the objects cannot be found."""
    ray = import_ray()

    def reduce_reference(reference: Any) -> tuple[Any, ...]:
        return ray.cloudpickle.loads, (ray.cloudpickle.dumps(reference),)

    with _PICKLE_LOCK:  # With several runs at once, the first to finish would unregister the pickler of the others.
        before = copyreg.dispatch_table.get(ray.ObjectRef)
        copyreg.pickle(ray.ObjectRef, reduce_reference)
        try:
            yield
        finally:
            if before is None:
                del copyreg.dispatch_table[ray.ObjectRef]
            else:
                copyreg.dispatch_table[ray.ObjectRef] = before


def prepare_ray_connection(connection: RayConnectionSpec) -> None:
    """Let Ray find the cluster at its first use, in the worker process; connect now if the job needs it to load."""
    if "ray" in sys.modules:
        _patch_ray_init(sys.modules["ray"], connection)
    else:
        sys.meta_path.insert(0, _RayImportHook(lambda ray: _patch_ray_init(ray, connection)))
    if connection.connect_at_once:
        import_ray().init()


def _patch_ray_init(ray: ModuleType, connection: RayConnectionSpec) -> None:
    init = ray.init

    @wraps(init)
    def init_quietly(*addresses: str | None, **options: Any) -> Any:
        if not addresses and options.get("address") is None:
            options["address"] = connection.address
        # Ignored: reading dataset rows may have connected this process before.
        defaults = {"namespace": connection.namespace, "ignore_reinit_error": True, **QUIET_OPTIONS}
        with CONNECT_LOCK, _preserve_signal_handlers():
            return init(*addresses, **(defaults | options))

    ray.init = init_quietly  # type: ignore[attr-defined]


class _RayImportHook(importlib.abc.MetaPathFinder):
    """One-shot import hook that patches `ray.init`."""

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

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            self._prepare(module)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _preserve_signal_handlers() -> Iterator[None]:
    """Restore handlers that Ray replaces: SIGTERM tells a worker that its machine is about to be taken away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.getsignal(signum) for signum in _PRESERVED_SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _is_ray(module: str) -> bool:
    return module == "ray" or module.startswith("ray.")
