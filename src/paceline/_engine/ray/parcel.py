"""Which of the driver's files travel to the nodes, and how they are packed.

By themselves the user's own modules do: what the script has imported from its directory or from the one it runs in.
With `worker_runtime_env` a whole directory (`working_dir`) or packages (`py_modules`) do; addresses there are Ray's to
fetch. The same files give the same bytes, whenever they are packed.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import stat
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

import paceline

MAX_MODULES = 20 << 20
MAX_WORKING_DIR = 500 << 20
MAX_DATA_FILE = 1 << 20
"""A larger file that is no code stays behind, unless it was asked for."""
_CODE = (".py", ".so", ".pyd")
_NEVER = ("__pycache__", "node_modules", "site-packages", "dist-packages")
_BEGINNING = (1980, 1, 1, 0, 0, 0)
_WAY_OUT = (
    "hint: RunConfig(worker_runtime_env={'working_dir': ...}) sends a directory that you choose; "
    "or have the files on every node, as installed packages or in a directory that all share"
)


class File(msgspec.Struct, frozen=True):
    path: str
    """Relative to its tree."""
    size: int
    hash: str


class Tree(msgspec.Struct, frozen=True):
    """Files below one directory of the driver's machine, which is to be on the path of the workers."""

    root: str
    files: tuple[File, ...]
    as_it_is: bool = False
    """A `working_dir`: where the workers are to be, too."""


class Parcel(msgspec.Struct, frozen=True):
    trees: tuple[Tree, ...] = ()
    digest: str = ""
    """Of names and contents: the name under which a node keeps them."""
    too_large: str = ""
    """Why modules do not travel, which matters to a node that lacks them."""


@dataclass(frozen=True)
class Packed:
    parcel: Parcel
    data: bytes


@dataclass(frozen=True)
class Root:
    """A directory, and what is taken along of what lies below."""

    path: Path
    files: tuple[Path, ...]
    as_it_is: bool = False


def own_modules(modules: Mapping[str, ModuleType | None], homes: Sequence[Path]) -> list[Root]:
    """Of the modules that are imported, those whose files lie below one of the `homes`, with their whole packages."""
    found: dict[Path, set[Path]] = {}
    # Copied at once: another thread may be importing.
    for name in sorted({name.partition(".")[0] for name in list(modules)}):
        module = modules.get(name)
        if module is None or name in ("__main__", "__mp_main__", "paceline") or name in sys.stdlib_module_names:
            continue
        for place in _places(name, module):
            if _is_own(place, homes):
                found.setdefault(place.parent, set()).update(_code_of(place))
    return [Root(root, tuple(sorted(files))) for root, files in sorted(found.items())]


def packed(modules: Sequence[Root], given: Sequence[Root] = ()) -> Packed:
    """All that travels. Too much of what was asked for is refused; too many modules concern only nodes without them."""
    if problem := _too_large(given, MAX_WORKING_DIR, "working_dir and py_modules of worker_runtime_env"):
        raise ValueError(problem)
    problem = _too_large(modules, MAX_MODULES, "the modules that the script has imported from its own directory")
    if problem:
        modules = [replace(root, files=tuple(f for f in root.files if f.suffix in _CODE)) for root in modules]
    roots = (*given, *modules)
    if not roots:
        return Packed(Parcel(), b"")
    found = _packed(tuple((root, tuple(map(_seen, root.files))) for root in roots))
    if not problem:
        return found
    return Packed(Parcel(found.parcel.trees, found.parcel.digest, problem), b"")


def split(runtime_env: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, list[Root]]:
    """Of a `worker_runtime_env`, what Ray sees to, and the directories of this machine, which travel with the job."""
    if runtime_env is None:
        return None, []
    rest = dict(runtime_env)
    roots: list[Root] = []
    directory = rest.get("working_dir")
    if directory is not None and not _is_address(directory):
        del rest["working_dir"]
        path = _existing("working_dir", directory)
        if not path.is_dir():
            raise ValueError(f"worker_runtime_env: working_dir={str(directory)!r} is a file and not a directory")
        roots.append(Root(path, tuple(_all_of(path, rest.pop("excludes", ()) or ())), as_it_is=True))
    entries = rest.pop("py_modules", None) or ()
    if isinstance(entries, str):
        raise ValueError(f"worker_runtime_env: py_modules={entries!r} is not a list")
    addresses = [entry for entry in entries if _is_address(entry)]
    if addresses:
        rest["py_modules"] = addresses
    for entry in entries:
        if not _is_address(entry):
            path = _existing("py_modules", _directory_of(entry))
            roots.append(Root(path.parent, tuple(_all_of(path)) if path.is_dir() else (path,)))
    return rest or None, roots


def homes(main: ModuleType | None) -> list[Path]:
    """The directory of the script and that in which it runs."""
    script = getattr(main, "__file__", None)
    found = [Path(script).absolute().parent] if script else []
    try:
        found.append(Path.cwd())
    except FileNotFoundError:
        pass  # It was removed under us: nothing lies there.
    return list(dict.fromkeys(found))


def _places(name: str, module: ModuleType) -> list[Path]:
    """Where a top-level module is found under its own name: a file, or the directories of a package."""
    directories = [Path(entry) for entry in getattr(module, "__path__", ())]
    if directories:
        return [path for path in directories if path.name == name and path.is_dir()]
    file = getattr(module, "__file__", None)
    path = Path(file) if file else None
    if path is None or path.name.partition(".")[0] != name or not path.is_file():
        return []
    return [path.absolute()]


def _is_own(place: Path, homes: Sequence[Path]) -> bool:
    real = Path(os.path.realpath(place))
    if {*real.parts} & {"site-packages", "dist-packages"} or any(real.is_relative_to(path) for path in _not_own()):
        return False
    return any(real.is_relative_to(os.path.realpath(home)) for home in homes)


@lru_cache
def _not_own() -> tuple[Path, ...]:
    """Python's own directories, and ours."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = {os.path.realpath(sysconfig.get_path(name)) for name in names}
    return (*map(Path, sorted(found)), Path(os.path.realpath(paceline.__file__)).parent)


def _code_of(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for path in _all_of(place):
        if path.suffix in _CODE or _size(path) <= MAX_DATA_FILE:
            yield path


def _all_of(top: Path, excludes: Sequence[str] = ()) -> Iterator[Path]:
    """Every file below a directory, but for what is made anew, what is hidden, and environments of Python."""
    for directory, names, files in os.walk(top):
        here = Path(directory)
        names[:] = sorted(
            name
            for name in names
            if name not in _NEVER
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
    for pattern in excludes:
        wanted = pattern.strip("/")
        if fnmatch.fnmatch(relative, wanted) or ("/" not in pattern.rstrip("/") and fnmatch.fnmatch(path.name, wanted)):
            return True
    return False


def _is_address(entry: Any) -> bool:
    return isinstance(entry, str) and "://" in entry


def _directory_of(entry: Any) -> Any:
    """Of a module that was given itself, where it lies."""
    if isinstance(entry, ModuleType):
        path = list(getattr(entry, "__path__", ())) or [entry.__file__]
        return path[0]
    return entry


def _existing(argument: str, entry: Any) -> Path:
    if not isinstance(entry, str | os.PathLike):
        raise ValueError(f"worker_runtime_env: {argument} has {entry!r}, which is no path and no address")
    path = Path(entry).expanduser().absolute()
    if not path.exists():
        raise ValueError(f"worker_runtime_env: {argument} names {str(path)!r}, which does not exist")
    return path


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _too_large(roots: Sequence[Root], limit: int, what: str) -> str:
    sizes = {path: _size(path) for root in roots for path in root.files}
    total = sum(sizes.values())
    if total <= limit:
        return ""
    largest = sorted(sizes, key=lambda path: -sizes[path])[:3]
    named = ", ".join(f"{path} ({_megabytes(sizes[path])})" for path in largest)
    return (
        f"{what} take {_megabytes(total)}, and at most {_megabytes(limit)} travel to the nodes with a job; "
        f"the largest: {named}\n\n{_WAY_OUT}"
    )


def _megabytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MB"


def _seen(path: Path) -> tuple[int, int, int]:
    """By which a file is known not to have changed since it was packed."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino


@lru_cache(maxsize=2)
def _packed(roots: tuple[tuple[Root, tuple[tuple[int, int, int], ...]], ...]) -> Packed:
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
                    continue  # It was removed since it was imported.
                name = path.relative_to(root.path).as_posix()
                info = zipfile.ZipInfo(f"{number}/{name}", _BEGINNING)
                info.external_attr = (0o700 if mode & stat.S_IXUSR else 0o600) << 16
                archive.writestr(info, data)
                files.append(File(name, len(data), xxhash.xxh3_128_hexdigest(data)))
            trees.append(Tree(str(root.path), tuple(files), root.as_it_is))
            names.update(msgspec.json.encode((number, files)))
    return Packed(Parcel(tuple(trees), names.hexdigest()[:32]), out.getvalue())
