"""What Ray has and Paceline has not, for error messages; the page guides/ray-names shows the same notes.

`ray_names.toml` has a table per module of Ray (or class with many methods), with notes by name. It is read for an
error only. Modules of Ray that are no file here can be imported all the same: their names are those of the nearest
package above, or of the module that the table's `from` says.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import opcode
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from paceline._core.arguments import find_nearest
from paceline._core.lazy_imports import raise_missing

Notes = dict[str, dict[str, str]]
PAGE = "docs/guides/ray-names.md"

_INNER_MODULES = {
    "train.v2.api": "callback context exceptions preemption report_config reported_checkpoint train_fn_utils "
    "validation_config",
    "train": "base_trainer checkpoint constants context",
    "train.callbacks": "callback logging print profile",
    **{f"train{v}.{name}": f"{name}_trainer" for v in ("", ".v2") for name in ("lightgbm", "tensorflow", "xgboost")},
    **{f"train{v}.torch": "torch_checkpoint torch_trainer train_loop_utils" for v in ("", ".v2")},
    "tune": "context",
    "tune.analysis": "experiment_analysis",
    "tune.experiment": "experiment trial",
    "tune.logger": "csv json logger tensorboardx",
    "tune.schedulers": "async_hyperband hb_bohb median_stopping_rule trial_scheduler",
    "tune.search": "concurrency_limiter repeater search_algorithm search_generator",
    **{
        f"tune.search.{name}": f"{name}_search"
        for name in ("ax", "bayesopt", "bohb", "hebo", "hyperopt", "nevergrad", "optuna", "zoopt")
    },
    "tune.stopper": "experiment_plateau function_stopper maximum_iteration noop stopper timeout trial_plateau",
    "tune.trainable": "trainable",
    "tune.utils": "util",
}
"""Modules of Ray, by package, whose names are in the package itself here."""

_PACKAGES = {
    "ray.train.v2.api": "paceline.train",
    "ray.train.v2": "paceline.train",
    "ray.tune.suggest": "paceline.tune.search",
    "ray.tune.sample": "paceline.tune.search.sample",
    **{f"ray.{area}": f"paceline.{area}" for area in ("train", "tune", "air", "data")},
}


def _list_modules() -> Iterator[tuple[str, str]]:
    for package, names in _INNER_MODULES.items():
        prefix = next(each for each in _PACKAGES if f"ray.{package}.".startswith(f"{each}."))
        ours = _PACKAGES[prefix] + f"ray.{package}"[len(prefix) :]
        yield from ((f"ray.{package}.{name}", ours) for name in names.split())
    yield from _PACKAGES.items()


MODULES = dict(_list_modules())
"""Packages and modules of Ray, of several releases, that are here, those first that are inside of another one."""

_LINK = re.compile(r"\[([^]]+)\]\((\.\./)?([^)]+)\)")


@functools.cache
def load_notes() -> Notes:
    """Read the notes, by Ray's module and name. `about` concerns the whole module."""
    return tomllib.loads(Path(__file__).with_name("ray_names.toml").read_text())


def explain_name(module: str, name: str, known: Iterable[str] = ()) -> str:
    """Return a hint about a name that `module` does not have; empty if there is nothing to say."""
    notes, ray_module = load_notes(), _to_ray(module)
    tables = [table for table in notes if name in notes[table].keys() - {"about", "from"}]
    for table in sorted(tables, key=lambda table: table != ray_module)[:1]:
        ours = re.sub(r"^ray", "paceline", table.replace(".v2", ""))
        if table != ray_module and _is_listed_in(ours, name):
            return f"{name} is in {ours}"
        return f"{table}.{name} is not in Paceline: {_expand_links(notes[table][name])}"
    nearest = find_nearest(name, known)
    return f"did you mean {nearest}?" if nearest else ""


def explain_argument(module: str, owners: Sequence[str], function: str, argument: str) -> str:
    """Return what the notes say about an argument of a function, or of a method of the class `owners[0]`."""
    return _find_clause(_list_notes(module, owners, function), argument)


@functools.cache
def explain_member(module: str, owners: tuple[str, ...], name: str) -> str:
    """Return what the notes say about an attribute that a class with base classes `owners` does not have."""
    notes = load_notes()
    for table in _rank_tables(module):
        if table.rpartition(".")[2] in owners and name in notes[table]:
            return _expand_links(notes[table][name])
    return _find_clause(_list_notes(module, owners, ""), name)


def find_prefix(path: str) -> tuple[str, str] | None:
    """Return the package of Ray that a dotted name is in, and ours; None if it is not of Train, Tune, AIR or Data."""
    return next(((ray, ours) for ray, ours in MODULES.items() if f"{path}.".startswith(f"{ray}.")), None)


def to_paceline(path: str) -> str:
    """Return our dotted name for one of Ray's."""
    prefix = find_prefix(path)
    return path if prefix is None else prefix[1] + path[len(prefix[0]) :]


def find_note(path: str) -> tuple[str, str]:
    """Return what the notes say of a dotted name of ours, for a terminal, and where its module is on the page."""
    tables = {table.replace(".v2", ""): table for table in load_notes()}
    *modules, name = _to_ray(path).split(".")
    for length in range(len(modules), 1, -1):
        table = tables.get(".".join(modules[:length]))
        if table is not None and name in load_notes()[table]:
            return _expand_links(load_notes()[table][name]), find_anchor(table)
    return "", find_anchor(".".join(modules))


def split_note(note: str) -> list[str]:
    """Split a note into its clauses, each of which stands alone."""
    return re.split(r"; (?!they)|\. (?=[A-Z`\[])", note)


def find_anchor(module: str) -> str:
    """Return the place of a module of Ray's on the page of names."""
    tables = {table.replace(".v2", ""): table for table in load_notes()}
    module = module.replace(".v2", "")
    while module.count(".") > 1 and module not in tables:
        module = module.rpartition(".")[0]
    return f"{PAGE}#{re.sub('[._]', '-', tables.get(module, module)).lower()}"


def raise_missing_name(module: str, name: str, known: Iterable[str]) -> NoReturn:
    """Raise for a name that a module does not have.

    For `from module import name` it is an ImportError: Python replaces the text of an AttributeError there.
    """
    hint = explain_name(module, name, known)
    hint = f"\n\nhint: {hint}" if hint else ""
    caller = sys._getframe(3)  # Of `raise_missing` and the `__getattr__`.
    if hint and caller.f_code.co_code[caller.f_lasti] == opcode.opmap["IMPORT_FROM"]:
        raise ImportError(f"cannot import name {name!r} from {module!r}{hint}", name=module)
    raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name, obj=sys.modules.get(module))


def find_ray_module(name: str) -> ModuleSpec | None:
    """Return the spec of a module that only Ray has as a file; raise if the notes say that we have nothing of it."""
    notes, ray_module = load_notes(), _to_ray(name)
    if ray_module.rpartition(".")[2][:1].isupper():
        return None  # A table about the methods of a class.
    if ray_module in MODULES or any(f"{t}.".replace(".v2.", ".").startswith(f"{ray_module}.") for t in notes):
        return ModuleSpec(name, _RayModuleLoader(), is_package=True)
    hint = notes["ray"].get(ray_module.removeprefix("ray."))
    if hint is None and find_prefix(ray_module) and ray_module.rpartition(".")[2].startswith("_"):
        hint = notes["ray"]["_internal"]
    if hint:
        raise ModuleNotFoundError(
            f"No module named {name!r}\n\nhint: {ray_module} is not in Paceline: {_expand_links(hint)}", name=name
        )
    return None


class _RayModuleLoader(Loader):
    """Makes a module of Ray's whose names are looked up where they are here."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__

        def getattr_from_above(attribute: str) -> Any:
            if not attribute.startswith("_"):
                for above in _list_modules_above(name):
                    if hasattr(above, attribute):
                        return getattr(above, attribute)
            return raise_missing(name, attribute, ())

        module.__doc__ = f"Names of `{_to_ray(name)}` that are in Paceline."
        module.__getattr__ = getattr_from_above  # type: ignore[method-assign]


def _list_modules_above(name: str) -> Iterator[ModuleType]:
    table = load_notes().get(_to_ray(name), {})
    if "from" in table:
        yield importlib.import_module(table["from"])
    parts = name.split(".")
    for length in range(len(parts) - 1, 1, -1):
        yield importlib.import_module(".".join(parts[:length]))


def _to_ray(module: str) -> str:
    return re.sub(r"^paceline\b", "ray", module)


def _is_listed_in(module: str, name: str) -> bool:
    """Whether the source of a module of ours lists a name. Does not import it: that could import a framework."""
    try:
        spec = importlib.util.find_spec(module)
        return spec is not None and bool(spec.origin) and f'"{name}"' in Path(str(spec.origin)).read_text()
    except (ImportError, OSError):
        return False


def _rank_tables(module: str) -> list[str]:
    """The tables of a module's area, those first that share most with its path."""
    parts = _to_ray(module).split(".")
    area = parts[:2]

    def distance(table: str) -> tuple[int, int]:
        path = table.split(".")
        shared = sum(a == b for a, b in zip(parts, path, strict=False))
        return -shared, len(path)

    return sorted((table for table in load_notes() if table.split(".")[:2] == area), key=distance)


def _list_notes(module: str, owners: Sequence[str], function: str) -> Iterator[str]:
    notes = load_notes()
    tables = _rank_tables(module)
    of_classes = [table for table in tables if table.rpartition(".")[2] in owners]
    for table in of_classes or [table for table in tables if function in notes[table]]:
        yield from (notes[table][name] for name in (function, "about") if name in notes[table])
    yield from (notes[table][name] for table in tables for name in owners if name in notes[table])
    yield from (notes[table]["about"] for table in tables[:1] if "about" in notes[table])


def _find_clause(texts: Iterable[str], word: str) -> str:
    """Return the first part of a sentence that mentions a word as code."""
    mention = re.compile(rf"`{re.escape(word)}=?`")
    clauses = (clause for text in texts for clause in split_note(text))
    return next((_expand_links(clause).rstrip(".") for clause in clauses if mention.search(clause)), "")


def _expand_links(markdown: str) -> str:
    """Write links for a terminal: the text, then the page."""
    return _LINK.sub(lambda link: f"{link[1]} (docs/{link[2] or 'guides/'}{link[3]})", markdown).replace("/../", "/")
