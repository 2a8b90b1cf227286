"""The metadata of a run as one object for its journal: configuration, environment, code.

It is collected in a thread while workers start, imports nothing, touches no device, and omits what looks like a secret.
Slow parts are collected once per process.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from paceline._control.events import Event, RunDescribed
from paceline._core import settings, system
from paceline._core.frames import display_path, is_library_file
from paceline._core.masking import MASK, mask_arguments, mask_source, mask_value
from paceline._core.plain_values import to_printable
from paceline._engine.local.devices import this_machine
from paceline._view import formatting
from paceline._view.diff import find_changes
from paceline.train.driver.code_fingerprint import find_changed_parts, fingerprint_code

if TYPE_CHECKING:
    from paceline.train.driver.run_spec import RunSpec

MAX_SOURCE_BYTES = 200_000
"""Limit for the user's own source files together."""
MAX_TRIAL_SOURCE_BYTES = 20_000
"""The limit in a trial's run, because a search may have ten thousand of them."""

_MAX_CHANGES = 5
"""How many changes to list; the rest are only counted."""

_PACKAGES = (
    *("paceline", "torch", "torchvision", "torchaudio", "triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "numpy"),
    *("ray", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "tensorflow", "tf-keras", "keras"),
    *("transformers", "accelerate", "datasets", "tokenizers", "peft", "trl", "deepspeed"),
    *("lightning", "pytorch-lightning", "xgboost", "lightgbm", "scikit-learn", "scipy", "pandas", "pyarrow", "polars"),
    *("optuna", "cloudpickle", "msgspec"),
)


_GIT_TIMEOUT_S = 1.0
_CACHE_S = 60.0
"""How long an answer from git, and the description of a trial's program, are kept: a search asks for each trial."""

_Program = tuple[dict[str, Any], dict[str, Any]]
"""The environment and the code."""

_last_program: tuple[Any, int, float, _Program] | None = None
_masked_configs: dict[type, tuple[Any, Any]] = {}
_dirty_cache: dict[Path, tuple[float, bool | None]] = {}


def collect_metadata_in_background(spec: RunSpec, history: Sequence[Event]) -> Future[RunDescribed | None]:
    """Collect the metadata, in a thread if that may take a while; None if the journal already has the same."""
    future: Future[RunDescribed | None] = Future()
    before = next((event for event in reversed(history) if isinstance(event, RunDescribed)), None)

    def collect() -> None:
        try:
            about = spec.metadata or collect_metadata(spec)
            is_known = before is not None and bytes(before.about) == about
            future.set_result(None if is_known else RunDescribed(msgspec.Raw(about)))
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)

    if spec.purpose and _find_described_program(spec) is not None:
        collect()  # What is slow is known from another trial: a thread would cost more than the rest.
    else:
        threading.Thread(target=collect, name="paceline-describing", daemon=True).start()
    return future


def find_changes_of_run(spec: RunSpec, history: Sequence[Event], *, only_certain: bool = False) -> list[str]:
    """Describe what changed since the run was last driven: its train_loop_config and its code.

    `only_certain`: not the values whose text may differ although they are equal.
    """
    before = next((event for event in reversed(history) if isinstance(event, RunDescribed)), None)
    if before is None:
        return []
    was = msgspec.json.decode(before.about)
    sent = msgspec.json.decode(spec.metadata) if spec.metadata else {}
    function = spec.job_parts[0]
    fingerprint = sent["fingerprint"] if "fingerprint" in sent else _fingerprint(spec)
    name = sent["code"]["function"] if "code" in sent else _function_name(_unwrap_function(function))
    changes = describe_code_changes(was.get("fingerprint"), fingerprint, was.get("code", {}).get("function"), name)
    if config := _describe_config_changes(spec.run_context.train_loop_config, was.get("config"), only_certain):
        changes.insert(0, f"train_loop_config changed since the last run: {config}")
    return changes


def describe_code_changes(was: Any, now: Any, name_before: Any, name: str) -> list[str]:
    """Describe what changed between two fingerprints of code."""
    changed = find_changed_parts(was, now)
    if not changed:
        return []
    named = [part for part in changed if part]
    if "" in changed:
        renamed = isinstance(name_before, str) and name_before != name
        named.insert(0, f"{name_before}, now {name}" if renamed else name)
    more = [f"{len(named) - _MAX_CHANGES} more"] if len(named) > _MAX_CHANGES else []
    return [f"the code changed since the last run: {', '.join(named[:_MAX_CHANGES] + more)}"]


def _fingerprint(spec: RunSpec) -> dict[str, Any]:
    # A trial is identified by its search.
    function = spec.job_parts[0]
    shown = getattr(function, "shown_function", None)
    return fingerprint_code(shown if shown is not None else function) if not spec.purpose else {}


def _describe_config_changes(config: Any, was: Any, only_certain: bool) -> str:
    now: Any = mask_value(_without_objects(config, was) if only_certain else config) or {}
    now = msgspec.json.decode(msgspec.json.encode(now, enc_hook=str))
    if not isinstance(was, dict) or not isinstance(now, dict):
        return "" if was == now else f"it was {_format_value(was)} and is {_format_value(now)}"
    changes = find_changes(was, now)
    texts = [
        f"{formatting.escape_unprintable(each.key)} was {_format_value(each.a)} and is {_format_value(each.b)}"
        for each in changes[:_MAX_CHANGES]
    ]
    more = [f"{len(changes) - _MAX_CHANGES} more"] if len(changes) > _MAX_CHANGES else []
    return ", ".join(texts + more)


def _without_objects(value: Any, was: Any) -> Any:
    """Return a configuration in which whatever is not plain is as it was: its `repr` says too little, or too much."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value) if field.repr}
    if isinstance(value, Mapping):
        before = was if isinstance(was, dict) else {}
        named = {next(iter(mask_value({key: None}))): each for key, each in value.items()}
        return {
            name: _without_objects(each, before.get(name))
            for name, each in named.items()
            if name in before or _is_plain(each)
        }
    return value if _is_plain(value) else was


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    return value is None or type(value) in (bool, int, float, str)


def _format_value(value: Any) -> str:
    """Format a value so that different numbers look different."""
    return repr(value) if isinstance(value, int | float) else formatting.value(value)


def collect_metadata(spec: RunSpec) -> bytes:
    """Collect the metadata as JSON. Call this in the script's process, since it describes the current process."""
    _, _, backend = spec.job_parts
    environment, code = _describe_trial_program(spec) if spec.purpose else _describe_program(spec)
    about = {
        "config": mask_value(spec.run_context.train_loop_config) or {},
        "scaling": _mask_config(spec.scaling_config),
        "run": _describe_run_config(spec.run_config),
        "backend": {"name": type(backend).__name__, **_mask_fields(backend)},
        "datasets": _describe_datasets(spec),
        "environment": environment,
        "code": code,
        "fingerprint": _fingerprint(spec),
    }
    return msgspec.json.encode(about, enc_hook=str)


def _describe_program(spec: RunSpec) -> _Program:
    return _describe_environment(), _describe_code(spec.job_parts[0], _source_limit(spec))


def _describe_trial_program(spec: RunSpec) -> _Program:
    """The environment and the code of a trial, described once for the trials of a search that start close together."""
    global _last_program
    if (known := _find_described_program(spec)) is not None:
        return known
    function, limit = _unwrap_function(spec.job_parts[0]), _source_limit(spec)
    _last_program = (function, limit, time.monotonic(), described := _describe_program(spec))
    return described


def _find_described_program(spec: RunSpec) -> _Program | None:
    last = _last_program
    if last is None or last[0] is not _unwrap_function(spec.job_parts[0]) or last[1] != _source_limit(spec):
        return None
    return last[3] if time.monotonic() - last[2] < _CACHE_S else None


def _source_limit(spec: RunSpec) -> int:
    if not spec.run_config.record_source:
        return 0
    return MAX_TRIAL_SOURCE_BYTES if spec.purpose else MAX_SOURCE_BYTES


def _mask_config(config: Any) -> Any:
    """Mask a frozen configuration; once for runs that have the same one, as the trials of a search."""
    known = _masked_configs.get(type(config))
    if known is None or known[0] is not config:
        known = _masked_configs[type(config)] = config, mask_value(config)
    return known[1]


def _mask_fields(value: Any) -> dict[str, Any]:
    fields: dict[str, Any] = mask_value(value if dataclasses.is_dataclass(value) else vars(value))
    return fields


def _describe_run_config(config: Any) -> dict[str, Any]:
    given = {each.name: getattr(config, each.name) for each in dataclasses.fields(config) if each.repr}
    shared = {name: _mask_config(given[name]) for name in ("failure_config", "checkpoint_config")}
    fields: dict[str, Any] = mask_value({**given, **dict.fromkeys(shared), "callbacks": []}) | shared
    fields["callbacks"] = [type(callback).__name__ for callback in config.callbacks]
    if config.fork_from is not None:
        fields["fork_from"] = to_printable(str(getattr(config.fork_from, "path", config.fork_from)))
    if config.storage_filesystem is not None:
        # Its `repr` may contain keys.
        fields["storage_filesystem"] = type(config.storage_filesystem).__name__
    variables = (config.worker_runtime_env or {}).get("env_vars")
    if isinstance(variables, Mapping) and isinstance(fields.get("worker_runtime_env"), dict):
        fields["worker_runtime_env"]["env_vars"] = {to_printable(str(name)): MASK for name in variables}
    return fields


def _describe_datasets(spec: RunSpec) -> dict[str, Any]:
    if spec.datasets is None:
        return {}
    modes = {shard.name: shard.mode for shard in spec.datasets.shards}
    return {
        name: {"plan": "\n".join(_plan_lines(plan, 0))[:20_000], "divided": modes.get(name, "")}
        for name, plan in spec.datasets.plans.items()
    }


def _plan_lines(node: Any, depth: int) -> list[str]:
    lines = [f"{'  ' * depth}{mask_value(node.name)}"]
    for part in node.inputs:
        lines += _plan_lines(part, depth + 1)
    return lines


# Environment


def _describe_environment() -> dict[str, Any]:
    version, machine = sys.version_info, os.uname()
    return {
        "python": f"{version.major}.{version.minor}.{version.micro}",
        "implementation": sys.implementation.name,
        "executable": to_printable(sys.executable or ""),
        "platform": f"{machine.sysname} {machine.release} {machine.machine}",
        "host": socket.gethostname(),
        "num_cores": system.num_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": [*_gpu_models()],
        "packages": _package_versions(),
        "argv": mask_arguments(sys.argv),
        "working_directory": to_printable(_working_directory()),
        "variables": {name: mask_value(value, name) for name, value in settings.descriptive_variables().items()},
    }


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


@functools.cache
def _gpu_models() -> tuple[str, ...]:
    """Read the GPU models from the driver's files, so that nothing in this process touches CUDA."""
    models = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            match = re.search(r"^Model:\s*(.+)$", file.read_text(errors="replace"), re.MULTILINE)
        except OSError:
            continue
        models.append(match[1].strip() if match is not None else "GPU")
    return tuple(models) or ("GPU",) * len(this_machine().gpus)


def _package_versions() -> dict[str, str]:
    versions = dict(_installed_versions())
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name.replace("-", "_")), "__version__", None)
        if isinstance(version, str):
            versions[name] = str(version)  # Torch has a class for it.
    return {name: to_printable(versions[name]) for name in sorted(versions)}


@functools.cache
def _installed_versions() -> tuple[tuple[str, str], ...]:
    """Read versions from directory names: `importlib.metadata` would open a file for each package."""
    packages = {name.replace("-", "_"): name for name in _PACKAGES}
    versions: dict[str, str] = {}
    for directory in sys.path:
        if not directory.endswith("-packages"):
            continue
        try:
            entries = os.listdir(directory)
        except OSError:
            continue
        for entry in entries:
            name, _, version = entry.removesuffix(".dist-info").partition("-")
            if entry.endswith(".dist-info") and (name := name.lower().replace(".", "_")) in packages:
                versions.setdefault(packages[name], version)
    return tuple(versions.items())


# Code


def _describe_code(function: Any, limit: int) -> dict[str, Any]:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    script = os.path.abspath(main) if main else None
    target = getattr(function, "target", None)  # from `paceline run`
    if isinstance(target, str):
        script = os.path.abspath(target) if not getattr(function, "is_module", False) else None
    unwrapped = _unwrap_function(function)
    file = _find_source_file(unwrapped)
    code: dict[str, Any] = {
        "script": display_path(script) if script is not None else "",
        "function": _function_name(unwrapped),
    }
    paths = [path for path in dict.fromkeys((script, file)) if path is not None and not is_library_file(path)]
    if paths:
        code["git"] = read_git_state(Path(paths[-1]).parent)
    sources = {}
    for path in paths if limit else ():
        text = _read_source(path, limit)
        if text is not None:
            sources[display_path(path)] = text
            limit -= len(text.encode())
    is_cell = limit and file is None and not isinstance(target, str)
    if is_cell and (text := _read_cell_source(unwrapped, limit)) is not None:
        sources[f"{getattr(unwrapped, '__name__', 'function')}.py"] = text
    code["sources"] = sources
    return code


def _unwrap_function(function: Any) -> Any:
    for _ in range(20):
        inner = function.func if isinstance(function, functools.partial) else None
        for name in ("shown_function", "inner_function", "__wrapped__"):
            inner = inner if inner is not None else getattr(function, name, None)
        if inner is None:
            return function
        function = inner
    return function


def _function_name(function: Any) -> str:
    target = getattr(function, "target", None)
    if isinstance(target, str):
        return to_printable(target)
    named = function if hasattr(function, "__qualname__") else type(function)
    return to_printable(f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}")


def _find_source_file(function: Any) -> str | None:
    code = getattr(function, "__code__", None)
    if code is None:
        code = getattr(getattr(type(function), "__call__", None), "__code__", None)  # noqa: B004  its code is wanted
    path = getattr(code, "co_filename", "")
    return os.path.abspath(path) if path and os.path.isfile(path) else None


def _read_source(path: str, limit: int) -> str | None:
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError:
        return None
    return mask_source(data.decode("utf-8", "backslashreplace")) if len(data) <= limit else None


def _read_cell_source(function: Any, limit: int) -> str | None:
    """Return the source of a function defined in a notebook or at a prompt."""
    try:
        text = mask_source(to_printable(inspect.getsource(function)))
    except (OSError, TypeError):
        return None
    return text if len(text.encode()) <= limit else None


# Git: commit and branch are read from files; git itself runs only to detect changes.


def read_git_state(directory: Path) -> dict[str, Any] | None:
    """Return `commit`, `branch` (None if detached) and `dirty`: files differ from the commit (None: unknown).

    Return None if the directory is in no readable repository.
    """
    root = next((each for each in (directory, *directory.parents) if (each / ".git").exists()), None)
    if root is None:
        return None
    marker = root / ".git"
    try:
        git_directory = marker
        if marker.is_file():  # In a worktree, it contains the path of the git directory.
            git_directory = (root / marker.read_text().removeprefix("gitdir:").strip()).resolve()
        head = (git_directory / "HEAD").read_text().strip()
        common = git_directory / "commondir"
        shared = (git_directory / common.read_text().strip()).resolve() if common.exists() else git_directory
        if not head.startswith("ref:"):
            return {"commit": head[:64], "branch": None, "dirty": _is_dirty(root)}
        ref = head.removeprefix("ref:").strip()
        commit = _read_commit(ref, (git_directory, shared))
    except (OSError, ValueError):
        return None
    return {"commit": commit, "branch": to_printable(ref.removeprefix("refs/heads/")), "dirty": _is_dirty(root)}


def _read_commit(ref: str, directories: tuple[Path, ...]) -> str:
    """Return the commit of a ref, or an empty string if it has none yet."""
    if not re.fullmatch(r"refs/[^\0]+", ref) or ".." in ref:
        return ""
    for directory in directories:
        file = directory / ref
        if file.is_file():
            return file.read_text().strip()[:64]
    packed = directories[-1] / "packed-refs"
    for line in packed.read_text().splitlines() if packed.is_file() else ():
        commit, _, name = line.partition(" ")
        if name == ref:
            return commit
    return ""


def _is_dirty(root: Path) -> bool | None:
    asked_at, answer = _dirty_cache.get(root, (float("-inf"), None))
    if time.monotonic() - asked_at >= _CACHE_S:
        answer = _has_changes(root)
        _dirty_cache[root] = time.monotonic(), answer
    return answer


def _has_changes(root: Path) -> bool | None:
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(root)]
    try:
        result = subprocess.run(
            [*command, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return bool(result.stdout.strip()) if result.returncode == 0 else None
