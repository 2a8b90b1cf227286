"""Finds what differs from Ray in a source: names, members, arguments, behaviour, and what stays with Ray.

Names are resolved by their imports, as libcst computes it, and compared with our own objects. Frameworks are not
imported for that: what cannot be looked at without one counts as there. The texts are those of `ray_names`, which
errors quote too.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import libcst as cst
import msgspec
from libcst.helpers import get_full_name_for_node
from libcst.metadata import (
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedNameProvider,
    QualifiedNameSource,
)

from paceline._commands.migration import Finding, Kind
from paceline._commands.migration.rewrite import MODULE_NAME, RewritePlan
from paceline._core.call_errors import make_argument_error
from paceline._core.ray_names import (
    explain_argument,
    explain_member,
    find_anchor,
    find_note,
    find_prefix,
    load_notes,
    split_note,
    to_paceline,
)
from paceline._core.settings import override_environment

_SLOW_IMPORTS = ("torch", "lightning", "pytorch_lightning", "transformers", "tensorflow", "jax", "ray")
_VARIABLE = re.compile(r"(RAY_TRAIN|RAY_AIR|RAY_TUNE|TUNE|RAY_DATA)_[A-Z0-9_]+")
_REQUIREMENT = re.compile(r"ray\[[\w, -]+\].*|ray\s*[=<>~!]=.*")
_CODE = re.compile(r"`[^`\w]*(\w+)[^`]*`")
_ADDITION = re.compile(
    r"(also(?! (refuses|raised))|see|as `|the same|made by|need not)\b.*"
    r"|.*\b(too|(is|are) ours|work( here)?|as Ray does)|.*\bmay (also )?be .*|`[^`]+`(, `[^`]+`)*",
    re.IGNORECASE,
)
"""Clauses of notes that say only what Paceline has in addition: scripts for Ray need not know."""


class _Unknown:
    """Stands for an object that only a framework could show."""


_UNKNOWN = _Unknown()


def find_differences(wrapper: MetadataWrapper, plan: RewritePlan) -> list[Finding]:
    """Return what differs, by line. Behaviour and what is left are told once, at their first line."""
    finder = _Finder(plan)
    with _without_frameworks():
        wrapper.visit(finder)
    seen, found = set(), []
    for each in sorted(finder.found, key=lambda each: (each.line, each.name)):
        key = (each.name, each.text, each.line if each.kind == "missing" else 0)
        if key not in seen:
            seen.add(key)
            found.append(each)
    return found


class _FrameworkBlocker:
    """The first finder of modules while ours are looked at: no framework that takes seconds to import is found."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name in _SLOW_IMPORTS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@contextlib.contextmanager
def _without_frameworks() -> Iterator[None]:
    """Let no framework be imported by what is looked at, and no process be started for one."""
    sys.meta_path.insert(0, _FrameworkBlocker)
    try:
        with override_environment({"PACELINE_PREWARM": "0"}):
            yield
    finally:
        sys.meta_path.remove(_FrameworkBlocker)


class _Finder(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (QualifiedNameProvider, ParentNodeProvider, PositionProvider)

    def __init__(self, plan: RewritePlan) -> None:
        self.plan = plan
        self.found: list[Finding] = []
        self.words: set[str] = set()

    def visit_Module(self, node: cst.Module) -> None:
        self.words = {*re.findall(r"\w+", node.code)}
        for kept, path in self.plan.kept:
            self._add_left(kept, path)

    def visit_Import(self, node: cst.Import) -> bool:
        for alias in node.names:
            self._check_name(alias, alias.evaluated_name)
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        module = get_full_name_for_node(node.module) if node.module is not None and not node.relative else None
        if module is None or module.split(".")[0] not in ("ray", "paceline"):
            return False
        if isinstance(node.names, cst.ImportStar):
            if module == "ray":
                self._add(node, "left", "ray", "`from ray import *` is left alone: import the names", "ray")
            return False
        for alias in node.names:
            path = f"{module}.{alias.evaluated_name}"
            self._check_name(alias, path)
            if path.startswith("ray.") and self.plan.map_name(path) is None:
                self._add_left(alias, path)
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        parent = self.get_metadata(ParentNodeProvider, node)
        if not (isinstance(parent, cst.Attribute) and parent.value is node):
            for path in self._resolve(node):
                self._check_name(node, path)
        return True

    def visit_Call(self, node: cst.Call) -> None:
        for path in self._resolve(node.func):
            ours = _find_object(to_paceline(path))
            if callable(ours) and not isinstance(ours, _Unknown):
                self._check_arguments(node, path, ours)

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        text = str(node.evaluated_value)
        if node in self.plan.strings:
            return
        if MODULE_NAME.fullmatch(text):
            self._add(node, "left", text, "a text that is left alone: change it if it names the module", text)
        elif _VARIABLE.fullmatch(text):
            self._add(node, "differs", text, "Ray reads this variable, Paceline does not", "ray.train")
        elif _REQUIREMENT.fullmatch(text):
            self._add(node, "left", text, "a requirement that is left alone: add `paceline`", "ray")

    def _resolve(self, node: cst.CSTNode) -> list[str]:
        """The dotted names of Ray's or ours that an expression has by its imports."""
        start = node
        while isinstance(start, cst.Attribute):
            start = start.value
        if not isinstance(start, cst.Name):  # libcst has the name of a function for what the function returns.
            return []
        names = self.get_metadata(QualifiedNameProvider, node, None) or ()
        return [
            each.name
            for each in names
            if each.source is QualifiedNameSource.IMPORT and (find_prefix(each.name) or each.name[:9] == "paceline.")
        ]

    def _check_name(self, node: cst.CSTNode, path: str) -> None:
        ours = to_paceline(path)
        if not ours.startswith("paceline."):
            return
        if gap := _find_gap(ours):
            name, text = gap
            self._add(node, "missing", re.sub("^paceline", "ray", name), text, find_note(name)[1])
        elif path != ours:
            note, page = find_note(ours)
            if note := "; ".join(each for each in split_note(note) if self._concerns_script(each, ours)):
                self._add(node, "differs", re.sub("^paceline", "ray", ours), note, page)

    def _concerns_script(self, clause: str, path: str) -> bool:
        """Whether a clause is about behaviour, or about a member that the script mentions.

        One about arguments only is listed where they are given.
        """
        about = {*_CODE.findall(clause)}
        is_met = not about or bool(about & self.words - _list_parameters(path))
        return is_met and not _ADDITION.fullmatch(clause)

    def _check_arguments(self, call: cst.Call, path: str, ours: Any) -> None:
        try:
            parameters = inspect.signature(ours).parameters
        except (TypeError, ValueError):
            return
        function = inspect.unwrap(getattr(ours, "__init__" if isinstance(ours, type) else "__func__", ours))
        owner = ours if isinstance(ours, type) else _find_object(to_paceline(path).rpartition(".")[0])
        owners = tuple(each.__name__ for each in owner.__mro__[:-1]) if isinstance(owner, type) else ()
        name = re.sub("^paceline", "ray", to_paceline(path))
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        for argument in call.args:
            if argument.keyword is None:
                continue
            given = argument.keyword.value
            label = f"{name}({given}=)"
            if given not in parameters and not takes_any:
                error = str(make_argument_error(function, name.rpartition(".")[2], given, owners))
                text = error.rpartition("\n\nhint: ")[2].removeprefix("this differs from Ray: ")
                self._add(argument, "missing", label, text, find_note(to_paceline(path))[1])
            elif find_prefix(path):
                said = explain_argument(function.__module__ or "", owners, function.__name__, given)
                note, page = find_note(to_paceline(path))
                if said and said in note and not _ADDITION.fullmatch(said):  # Not what is said of a base class.
                    self._add(argument, "differs", label, said, page)
        kinds = [each.kind for each in parameters.values()]
        if inspect.Parameter.VAR_POSITIONAL not in kinds and not any(each.star for each in call.args):
            num_taken = sum(each.name in ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD") for each in kinds)
            num_given = sum(each.keyword is None for each in call.args)
            if num_given > num_taken:
                text = f"takes {num_taken} by position, {num_given} are given: pass the others by name"
                self._add(call, "missing", f"{name}()", text, find_note(to_paceline(path))[1])

    def _add_left(self, node: cst.CSTNode, path: str) -> None:
        parts = path.split(".")
        if len(parts) == 1:
            return
        text = load_notes()["ray"].get(parts[1], "Ray Core: keep `import ray`")
        self._add(node, "left", ".".join(parts[:2]), text, "ray")

    def _add(self, node: cst.CSTNode, kind: Kind, name: str, text: str, module_or_page: str) -> None:
        line = self.get_metadata(PositionProvider, node).start.line
        page = module_or_page if "#" in module_or_page else find_anchor(module_or_page)
        self.found.append(Finding(line, kind, name, text, page))


@functools.cache
def _find_object(path: str) -> Any:
    """Our object of a dotted name; None if there is none, `_UNKNOWN` if a framework is needed to look."""
    found = _walk(path)
    return None if isinstance(found, _Gap) else found


@functools.cache
def _list_parameters(path: str) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(_find_object(path)).parameters)
    except (TypeError, ValueError):  # A module, or what only a framework could show.
        return frozenset()


@functools.cache
def _find_gap(path: str) -> tuple[str, str] | None:
    """The first part of a dotted name that is not there, and what to use in its place; None if all of it is."""
    found = _walk(path)
    return (found.name, found.text) if isinstance(found, _Gap) else None


class _Gap(msgspec.Struct, frozen=True):
    name: str
    text: str


def _walk(path: str) -> Any:
    parts = path.split(".")
    found: Any = importlib.import_module(parts[0])
    for at, part in enumerate(parts[1:], 1):
        name = ".".join(parts[: at + 1])
        try:
            found = getattr(found, part)
        except ImportError:
            return _UNKNOWN
        except AttributeError as error:
            if error.name != part:
                return _UNKNOWN  # Of a package that another one needs.
            if inspect.ismodule(found):
                try:
                    found = importlib.import_module(name)
                except ModuleNotFoundError as missing:
                    if missing.name and not missing.name.startswith("paceline"):
                        return _UNKNOWN
                    hints = (str(each).partition("\n\nhint: ")[2] for each in (missing, error))
                    return _Gap(name, next(filter(None, hints), f"is not in {found.__name__}"))
                except ImportError:
                    return _UNKNOWN
            elif isinstance(found, type) and found.__module__.startswith("paceline."):
                if part in {*getattr(found, "__dataclass_fields__", ()), *getattr(found, "__annotations__", ())}:
                    return _UNKNOWN
                said = explain_member(found.__module__, tuple(each.__name__ for each in found.__mro__), part)
                return _Gap(name, said or f"{found.__name__} has no {part}")
            else:
                return _UNKNOWN
    return found
