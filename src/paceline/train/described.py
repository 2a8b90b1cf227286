"""What a run was asked to do and with what, as one object for its journal: configuration, surroundings, code.

It is made in a thread while workers start, imports nothing, touches no device, and leaves out what looks like a
secret. What of it is slow to find is found once for a process.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from paceline._control.events import Described, Event
from paceline._core import settings, system
from paceline._core.frames import is_library, shown_path
from paceline._core.masking import MASK, arguments, shown
from paceline._core.plain import printable
from paceline._engine.local.devices import this_machine
from paceline._view import words
from paceline._view.diff import changes
from paceline.train.repository import repository_of

if TYPE_CHECKING:
    from paceline.train.drive import Asked

MAX_SOURCES = 200_000
"""Bytes of the user's own files, in all."""
MAX_SOURCES_OF_TRIAL = 20_000
"""The same in a run that is one of many: there may be ten thousand of them."""

_NAMED = 5
"""So many changes are told, and how many more there are."""

_PACKAGES = (
    *("paceline", "torch", "torchvision", "torchaudio", "triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "numpy"),
    *("ray", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "tensorflow", "tf-keras", "keras"),
    *("transformers", "accelerate", "datasets", "tokenizers", "peft", "trl", "deepspeed"),
    *("lightning", "pytorch-lightning", "xgboost", "lightgbm", "scikit-learn", "scipy", "pandas", "pyarrow", "polars"),
    *("optuna", "cloudpickle", "msgspec"),
)


def describing(asked: Asked, history: Sequence[Event]) -> Future[Described | None]:
    """The description, being made in a thread; None where the journal has the same one already."""
    future: Future[Described | None] = Future()
    before = next((event for event in reversed(history) if isinstance(event, Described)), None)

    def work() -> None:
        try:
            about = asked.description or description(asked)
            is_known = before is not None and bytes(before.about) == about
            future.set_result(None if is_known else Described(msgspec.Raw(about)))
        except BaseException as error:  # noqa: BLE001  told by who takes the result
            future.set_exception(error)

    threading.Thread(target=work, name="paceline-describing", daemon=True).start()
    return future


def changed_since(asked: Asked, history: Sequence[Event]) -> str:
    """What of the train_loop_config is not as it was when the run was last driven; nothing where all is."""
    before = next((event for event in reversed(history) if isinstance(event, Described)), None)
    if before is None:
        return ""
    was = msgspec.json.decode(before.about).get("config")
    now = msgspec.json.decode(msgspec.json.encode(shown(asked.about.train_loop_config) or {}, enc_hook=str))
    if not isinstance(was, dict) or not isinstance(now, dict):
        return "" if was == now else f"it was {_told(was)} and is {_told(now)}"
    found = changes(was, now)
    told = [f"{words.harmless(each.key)} was {_told(each.a)} and is {_told(each.b)}" for each in found[:_NAMED]]
    more = [f"{len(found) - _NAMED} more"] if len(found) > _NAMED else []
    return ", ".join(told + more)


def _told(value: Any) -> str:
    """Two numbers that differ do not look the same."""
    return repr(value) if isinstance(value, int | float) else words.value(value)


def description(asked: Asked) -> bytes:
    """All of it, in JSON. In the process of the script: elsewhere it would tell of another one."""
    function, _, backend = asked.parts
    limit = MAX_SOURCES_OF_TRIAL if asked.purpose else MAX_SOURCES
    about = {
        "config": shown(asked.about.train_loop_config) or {},
        "scaling": shown(asked.scaling),
        "run": _run(asked.run_config),
        "backend": {"name": type(backend).__name__, **_fields(backend)},
        "datasets": _datasets(asked),
        "environment": _environment(),
        "code": _code(function, limit),
    }
    return msgspec.json.encode(about, enc_hook=str)


def _fields(value: Any) -> dict[str, Any]:
    told: dict[str, Any] = shown(value if dataclasses.is_dataclass(value) else vars(value))
    return told


def _run(config: Any) -> dict[str, Any]:
    told = _fields(config)
    told["callbacks"] = [type(callback).__name__ for callback in config.callbacks]
    if config.storage_filesystem is not None:
        # Its `repr` may have keys in it.
        told["storage_filesystem"] = type(config.storage_filesystem).__name__
    variables = (config.worker_runtime_env or {}).get("env_vars")
    if isinstance(variables, Mapping) and isinstance(told.get("worker_runtime_env"), dict):
        told["worker_runtime_env"]["env_vars"] = {printable(str(name)): MASK for name in variables}
    return told


def _datasets(asked: Asked) -> dict[str, Any]:
    if asked.data is None:
        return {}
    modes = {shard.name: shard.mode for shard in asked.data.shards}
    return {
        name: {"plan": "\n".join(_drawn(plan, 0))[:20_000], "divided": modes.get(name, "")}
        for name, plan in asked.data.plans.items()
    }


def _drawn(node: Any, depth: int) -> list[str]:
    lines = [f"{'  ' * depth}{shown(node.name)}"]
    for part in node.inputs:
        lines += _drawn(part, depth + 1)
    return lines


# Surroundings


def _environment() -> dict[str, Any]:
    version, machine = sys.version_info, os.uname()
    told: dict[str, Any] = {
        "python": f"{version.major}.{version.minor}.{version.micro}",
        "implementation": sys.implementation.name,
        "executable": printable(sys.executable or ""),
        "platform": f"{machine.sysname} {machine.release} {machine.machine}",
        "host": socket.gethostname(),
        "num_cores": system.num_cores(),
        "memory_bytes": _memory_bytes(),
        "gpus": [*_gpus()],
        "packages": _packages(),
        "argv": arguments(sys.argv),
        "working_directory": printable(_working_directory()),
        "variables": {name: shown(value, name) for name, value in settings.telling_variables().items()},
    }
    return told


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@functools.cache
def _gpus() -> tuple[str, ...]:
    """As the driver's own files tell, so that nothing in this process touches CUDA."""
    models = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            found = re.search(r"^Model:\s*(.+)$", file.read_text(errors="replace"), re.MULTILINE)
        except OSError:
            continue
        models.append(found[1].strip() if found is not None else "GPU")
    return tuple(models) or ("GPU",) * len(this_machine().gpus)


def _packages() -> dict[str, str]:
    """Versions, of what is installed; of what is imported already, that which is."""
    told = dict(_installed())
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name.replace("-", "_")), "__version__", None)
        if isinstance(version, str):
            told[name] = str(version)  # Torch has a class for it.
    return {name: printable(told[name]) for name in sorted(told)}


@functools.cache
def _installed() -> tuple[tuple[str, str], ...]:
    """Read from the names of directories: `importlib.metadata` would open a file for each package."""
    wanted = {name.replace("-", "_"): name for name in _PACKAGES}
    found: dict[str, str] = {}
    for directory in sys.path:
        if not directory.endswith("-packages"):
            continue
        try:
            entries = os.listdir(directory)
        except OSError:
            continue
        for entry in entries:
            name, _, version = entry.removesuffix(".dist-info").partition("-")
            if entry.endswith(".dist-info") and (name := name.lower().replace(".", "_")) in wanted:
                found.setdefault(wanted[name], version)
    return tuple(found.items())


# Code


def _code(function: Any, limit: int) -> dict[str, Any]:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    script = os.path.abspath(main) if main else None
    target = getattr(function, "target", None)  # of `paceline run`
    if isinstance(target, str):
        script = os.path.abspath(target) if not getattr(function, "is_module", False) else None
    own = _unwrapped(function)
    file = _file_of(own)
    told: dict[str, Any] = {
        "script": shown_path(script) if script is not None else "",
        "function": _name_of(own),
    }
    paths = [path for path in dict.fromkeys((script, file)) if path is not None and not is_library(path)]
    if paths:
        told["git"] = repository_of(Path(paths[-1]).parent)
    sources, left = {}, limit
    for path in paths:
        text = _text_of(path, left)
        if text is not None:
            sources[shown_path(path)] = text
            left -= len(text.encode())
    if file is None and not isinstance(target, str) and (text := _cell_of(own, left)) is not None:
        sources[f"{getattr(own, '__name__', 'function')}.py"] = text
    told["sources"] = sources
    return told


def _unwrapped(function: Any) -> Any:
    """The user's own function within partials, decorators and objects of ours."""
    for _ in range(20):
        inner = function.func if isinstance(function, functools.partial) else None
        for name in ("shown_function", "inner_function", "__wrapped__"):
            inner = inner if inner is not None else getattr(function, name, None)
        if inner is None:
            return function
        function = inner
    return function


def _name_of(function: Any) -> str:
    target = getattr(function, "target", None)
    if isinstance(target, str):
        return printable(target)
    named = function if hasattr(function, "__qualname__") else type(function)
    return printable(f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}")


def _file_of(function: Any) -> str | None:
    code = getattr(function, "__code__", None)
    if code is None:
        code = getattr(getattr(type(function), "__call__", None), "__code__", None)  # noqa: B004  its code is wanted
    path = getattr(code, "co_filename", "")
    return os.path.abspath(path) if path and os.path.isfile(path) else None


def _text_of(path: str, limit: int) -> str | None:
    """None where it cannot be read, or there is no room for all of it."""
    try:
        if os.path.getsize(path) > limit:
            return None
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError:
        return None
    return data.decode("utf-8", "backslashreplace") if len(data) <= limit else None


def _cell_of(function: Any, limit: int) -> str | None:
    """What was typed, of a function of a notebook or a prompt."""
    try:
        text = printable(inspect.getsource(function))
    except (OSError, TypeError):
        return None
    return text if len(text.encode()) <= limit else None
