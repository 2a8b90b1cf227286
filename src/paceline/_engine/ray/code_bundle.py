"""What a run sends from the driver to the nodes: the settings of its actors, and the user's files.

By default these files are the modules that the script has imported from its own directory or from the current one. With
`worker_runtime_env` they are a `working_dir` or `py_modules`. The same files always give the same bytes.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import platform
import stat
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

import paceline
from paceline._core import settings
from paceline._core.arguments import parse_env_vars
from paceline._core.checkpoint_records import FileEntry
from paceline._engine.ray.connection import import_ray

MAX_MODULES_BYTES = 20 << 20
MAX_WORKING_DIR_BYTES = 500 << 20
MAX_DATA_FILE_BYTES = 1 << 20
"""Larger files that are not code are skipped unless requested."""
_CODE_SUFFIXES = (".py", ".so", ".pyd")
_EXCLUDED_DIRECTORIES = ("__pycache__", "node_modules", "site-packages", "dist-packages")
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_SIZE_HINT = (
    "hint: RunConfig(worker_runtime_env={'working_dir': ...}) sends a directory that you choose; "
    "or have the files on every node, as installed packages or in a directory that all share"
)


class CodeTree(msgspec.Struct, frozen=True):
    """Files below one directory of the driver's machine, which goes on the workers' `sys.path`."""

    root: str
    files: tuple[FileEntry, ...]
    """Their paths are relative to the root."""
    is_working_dir: bool = False
    """A `working_dir`: also the workers' current directory."""


class CodeManifest(msgspec.Struct, frozen=True):
    trees: tuple[CodeTree, ...] = ()
    digest: str = ""
    """Of names and contents; a node stores the files under this name."""
    size_problem: str = ""
    """Why the modules are not sent; matters only to a node that lacks them."""


class ActorConfig(msgspec.Struct, frozen=True):
    """What an actor receives when it starts."""

    version: str = ""
    """Of Paceline on the driver; `python` likewise."""
    python: str = ""
    env: dict[str, str] = {}
    """The driver's Paceline settings."""
    argv: tuple[str, ...] = ()
    cwd: str = ""
    namespace: str = ""
    """The Ray namespace of the driver's named actors."""
    manifest: CodeManifest = CodeManifest()


@dataclass(frozen=True)
class CodeBundle:
    config: ActorConfig = field(default_factory=ActorConfig)
    data: bytes = b""
    """The files of the manifest, packed."""
    runtime_env: Mapping[str, Any] | None = None
    """The part of `worker_runtime_env` that Ray handles."""


def build_code_bundle(runtime_env: Mapping[str, Any] | None) -> CodeBundle:
    """Build the bundle for a run of this process. Ray must be connected."""
    env_vars = parse_env_vars(runtime_env)
    rest, roots = split_runtime_env(runtime_env)
    try:
        import_ray().runtime_env.RuntimeEnv(**(rest or {}))
    except (ValueError, TypeError) as error:
        raise ValueError(f"Ray rejects worker_runtime_env={dict(rest or {})!r}: {error}") from error
    has_own_dir = any(root.is_working_dir for root in roots) or "working_dir" in (rest or {})
    homes = script_directories(sys.modules.get("__main__"))
    packed = pack_code([] if has_own_dir else find_user_modules(sys.modules, homes), roots)
    config = ActorConfig(
        version=paceline.__version__,
        python=platform.python_version(),
        env={name: value for name, value in settings.paceline_variables().items() if name not in env_vars},
        argv=tuple(sys.argv),
        cwd=_current_directory(),
        namespace=import_ray().get_runtime_context().namespace,
        manifest=packed.manifest,
    )
    return CodeBundle(config, packed.data, rest)


@dataclass(frozen=True)
class PackedCode:
    manifest: CodeManifest
    data: bytes


@dataclass(frozen=True)
class SourceRoot:
    path: Path
    files: tuple[Path, ...]
    is_working_dir: bool = False


def find_user_modules(modules: Mapping[str, ModuleType | None], homes: Sequence[Path]) -> list[SourceRoot]:
    """Return the imported modules whose files are below one of the `homes`, with their whole packages."""
    files_by_root: dict[Path, set[Path]] = {}
    # Copied first: another thread may be importing.
    for name in sorted({name.partition(".")[0] for name in list(modules)}):
        module = modules.get(name)
        if module is None or name in ("__main__", "__mp_main__", "paceline") or name in sys.stdlib_module_names:
            continue
        for location in _module_paths(name, module):
            if _is_user_path(location, homes):
                files_by_root.setdefault(location.parent, set()).update(_iter_code(location))
    return [SourceRoot(root, tuple(sorted(files))) for root, files in sorted(files_by_root.items())]


def pack_code(modules: Sequence[SourceRoot], requested: Sequence[SourceRoot] = ()) -> PackedCode:
    """Pack everything to send. Too large a request is an error; too large modules fail only nodes that lack them."""
    label = "working_dir and py_modules of worker_runtime_env"
    if refusal := _find_size_problem(requested, MAX_WORKING_DIR_BYTES, label):
        raise ValueError(refusal)
    label = "the modules that the script has imported from its own directory"
    if problem := _find_size_problem(modules, MAX_MODULES_BYTES, label):
        modules = [replace(root, files=tuple(f for f in root.files if f.suffix in _CODE_SUFFIXES)) for root in modules]
    roots = (*requested, *modules)
    if not roots:
        return PackedCode(CodeManifest(), b"")
    packed = _pack_roots(tuple((root, tuple(map(_file_stamp, root.files))) for root in roots))
    if not problem:
        return packed
    return PackedCode(CodeManifest(packed.manifest.trees, packed.manifest.digest, problem), b"")


def split_runtime_env(runtime_env: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, list[SourceRoot]]:
    """Split a `worker_runtime_env` into Ray's part and the local directories, which are sent with the job."""
    if runtime_env is None:
        return None, []
    rest = dict(runtime_env)
    roots: list[SourceRoot] = []
    directory = rest.get("working_dir")
    if directory is not None and not _is_address(directory):
        del rest["working_dir"]
        path = _resolve_path("working_dir", directory)
        if not path.is_dir():
            raise ValueError(f"working_dir of worker_runtime_env must be a directory, got the file {str(directory)!r}")
        roots.append(SourceRoot(path, tuple(_iter_files(path, rest.pop("excludes", ()) or ())), is_working_dir=True))
    entries = rest.pop("py_modules", None) or ()
    if isinstance(entries, str):
        raise ValueError(f"py_modules of worker_runtime_env must be a list, got {entries!r}")
    addresses = [entry for entry in entries if _is_address(entry)]
    if addresses:
        rest["py_modules"] = addresses
    for entry in entries:
        if not _is_address(entry):
            path = _resolve_path("py_modules", entry)
            roots.append(SourceRoot(path.parent, tuple(_iter_files(path)) if path.is_dir() else (path,)))
    return rest or None, roots


def script_directories(main: ModuleType | None) -> list[Path]:
    """Return the script's directory and the current directory."""
    script = getattr(main, "__file__", None)
    directories = [Path(script).absolute().parent] if script else []
    return list(dict.fromkeys([*directories, *map(Path, filter(None, [_current_directory()]))]))


def _module_paths(name: str, module: ModuleType) -> list[Path]:
    """Return where a top-level module is found under its own name: a file, or the directories of a package."""
    directories = [Path(entry) for entry in getattr(module, "__path__", ())]
    if directories:
        return [path for path in directories if path.name == name and path.is_dir()]
    path = Path(getattr(module, "__file__", None) or "")
    return [path.absolute()] if path.name.partition(".")[0] == name and path.is_file() else []


def _is_user_path(location: Path, homes: Sequence[Path]) -> bool:
    real = Path(os.path.realpath(location))
    is_installed = {*real.parts} & {"site-packages", "dist-packages"}
    if is_installed or any(real.is_relative_to(path) for path in _library_directories()):
        return False
    return any(real.is_relative_to(os.path.realpath(home)) for home in homes)


@lru_cache
def _library_directories() -> tuple[Path, ...]:
    """Return the directories of Python itself and of this package."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    paths = {os.path.realpath(sysconfig.get_path(name)) for name in names}
    return (*map(Path, sorted(paths)), Path(os.path.realpath(paceline.__file__)).parent)


def _iter_code(location: Path) -> Iterator[Path]:
    if location.is_file():
        yield location
        return
    for path in _iter_files(location):
        if path.suffix in _CODE_SUFFIXES or _file_stamp(path)[1] <= MAX_DATA_FILE_BYTES:
            yield path


def _iter_files(top: Path, excludes: Sequence[str] = ()) -> Iterator[Path]:
    """Yield every file below a directory except caches, hidden files and Python environments."""
    for directory, names, files in os.walk(top):
        here = Path(directory)
        names[:] = sorted(
            name
            for name in names
            if name not in _EXCLUDED_DIRECTORIES
            and not name.startswith(".")
            and not (here / name / "pyvenv.cfg").exists()
            and not _is_excluded(here / name, top, excludes)
        )
        for name in sorted(files):
            path = here / name
            hidden = name.startswith(".") or name.endswith((".pyc", ".pyo"))
            if not hidden and path.is_file() and not _is_excluded(path, top, excludes):
                yield path


def _is_excluded(path: Path, top: Path, excludes: Sequence[str]) -> bool:
    relative = path.relative_to(top).as_posix()
    return any(
        fnmatch.fnmatch(relative, pattern.strip("/"))
        or ("/" not in pattern.rstrip("/") and fnmatch.fnmatch(path.name, pattern.strip("/")))
        for pattern in excludes
    )


def _is_address(entry: Any) -> bool:
    return isinstance(entry, str) and "://" in entry


def _resolve_path(argument: str, entry: Any) -> Path:
    if isinstance(entry, ModuleType):
        entry = [*getattr(entry, "__path__", ()), entry.__file__][0]
    if not isinstance(entry, str | os.PathLike):
        raise ValueError(f"{argument} of worker_runtime_env must hold paths or addresses, got {entry!r}")
    path = Path(entry).expanduser().absolute()
    if not path.exists():
        raise ValueError(f"{argument} of worker_runtime_env: {str(path)!r} does not exist")
    return path


def _find_size_problem(roots: Sequence[SourceRoot], limit: int, label: str) -> str:
    sizes = {path: _file_stamp(path)[1] for root in roots for path in root.files}
    total = sum(sizes.values())
    if total <= limit:
        return ""
    largest = sorted(sizes, key=lambda path: -sizes[path])[:3]
    named = ", ".join(f"{path} ({_format_megabytes(sizes[path])})" for path in largest)
    return (
        f"{label} take {_format_megabytes(total)}, more than the {_format_megabytes(limit)} that are sent to nodes; "
        f"the largest: {named}\n\n{_SIZE_HINT}"
    )


def _format_megabytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MB"


def _file_stamp(path: Path) -> tuple[int, int, int]:
    """Return the modification time, the size and the inode, which change when the file does; zeros if it is gone."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0, 0
    return status.st_mtime_ns, status.st_size, status.st_ino


@lru_cache(maxsize=2)
def _pack_roots(roots: tuple[tuple[SourceRoot, tuple[tuple[int, int, int], ...]], ...]) -> PackedCode:
    import xxhash

    out = io.BytesIO()
    trees = []
    names = hashlib.sha256()
    with zipfile.ZipFile(out, "w") as archive:
        for number, (root, _) in enumerate(roots):
            files = []
            for path in root.files:
                try:
                    data, mode = path.read_bytes(), path.stat().st_mode
                except FileNotFoundError:
                    continue  # It was removed after it was imported.
                name = path.relative_to(root.path).as_posix()
                info = zipfile.ZipInfo(f"{number}/{name}", _ZIP_EPOCH)
                info.external_attr = (0o700 if mode & stat.S_IXUSR else 0o600) << 16
                archive.writestr(info, data)
                files.append(FileEntry(name, len(data), xxhash.xxh3_128_hexdigest(data)))
            trees.append(CodeTree(str(root.path), tuple(files), root.is_working_dir))
            names.update(msgspec.json.encode((number, files)))
    return PackedCode(CodeManifest(tuple(trees), names.hexdigest()[:32]), out.getvalue())


def _current_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""
