"""Changes the imports of a source from Ray's libraries to Paceline, and nothing else: comments and formatting stay.

`plan_rewrite` decides which nodes change, from the scopes that libcst computes; `rewrite` carries it out. What is
imported as `ray` and used for more than Train, Tune, AIR and Data keeps its import.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import (
    Assignment,
    MetadataWrapper,
    ParentNodeProvider,
    Scope,
    ScopeProvider,
)

from paceline._core.ray_names import MODULES, find_prefix, to_paceline

LIFECYCLE = ("ray.init", "ray.is_initialized", "ray.shutdown")
"""What `paceline` itself has of Ray Core, for `--local`."""

IMPORTERS = {"import_module", "__import__", "find_spec", "importorskip", "patch", "setattr"}
"""Functions whose first argument is a module or a path of one."""

RUNTIME_ENV = {"runtime_env", "worker_runtime_env", "py_modules", "working_dir"}

MODULE_NAME = re.compile(r"ray\.(train|tune|air|data)(\.\w+)*")
_IN_TEXT = re.compile(r"(?<![\w.])ray((?:\.\w+)+)")

SmallStatements = Sequence[cst.BaseSmallStatement]
Statement = cst.BaseStatement | cst.SimpleStatementLine


@dataclass
class RewritePlan:
    """The nodes that change, with what takes their place."""

    is_local: bool
    """Whether `ray.init()` and the like become Paceline's."""
    names: dict[cst.CSTNode, str] = field(default_factory=dict)
    """Attributes such as `ray.train`, with the new ones."""
    strings: dict[cst.CSTNode, str] = field(default_factory=dict)
    aliases: dict[cst.CSTNode, list[cst.ImportAlias]] = field(default_factory=dict)
    """Names in `import` statements, with what is imported in their place."""
    kept: list[tuple[cst.CSTNode, str]] = field(default_factory=list)
    """Uses of `ray` that stay, with the name in Ray."""

    def map_name(self, path: str) -> tuple[str, str] | None:
        """The part of a dotted name of Ray's that changes, and what it becomes."""
        if prefix := find_prefix(path):
            return prefix
        start = ".".join(path.split(".")[:2])
        return (start, "paceline" + start[3:]) if self.is_local and start in LIFECYCLE else None


def open_source(source: bytes | str) -> MetadataWrapper:
    """Parse a source. Raises `libcst.ParserSyntaxError`."""
    return MetadataWrapper(cst.parse_module(source))


def plan_rewrite(wrapper: MetadataWrapper, *, is_local: bool = False) -> RewritePlan:
    plan = RewritePlan(is_local)
    parents = wrapper.resolve(ParentNodeProvider)
    scopes = {scope for scope in wrapper.resolve(ScopeProvider).values() if scope is not None}
    bindings = {(scope, name): found for scope in scopes for name, found in _find_bindings(plan, scope).items()}
    for scope in scopes:
        # Not the references of each assignment: libcst leaves out those before an `import` in the same scope.
        for access in scope.accesses:
            name = _find_root(access.node)
            for binder in {assignment.scope for assignment in scope[name]}:
                if binding := bindings.get((binder, name)):
                    _plan_use(plan, binding, access.node, name, parents)
    for (_, name), binding in bindings.items():
        _plan_imports(plan, binding, name)
    wrapper.visit(_StringFinder(plan))
    return plan


def rewrite(wrapper: MetadataWrapper, plan: RewritePlan) -> cst.Module:
    return wrapper.visit(_Rewriter(plan))


@dataclass
class _Binding:
    """A name of a scope that stands for the package `ray`."""

    imports: list[tuple[cst.ImportAlias, str]] = field(default_factory=list)
    has_core: bool = False
    """Whether a use of it, or another assignment, needs Ray."""
    has_ours: bool = False
    uses: list[cst.CSTNode] = field(default_factory=list)
    """Those that become Paceline's."""


def _find_bindings(plan: RewritePlan, scope: Scope) -> dict[str, _Binding]:
    """Find the names that stand for `ray`; plan the imports of modules that have a name of their own."""
    bindings: dict[str, _Binding] = defaultdict(_Binding)
    for assignment in scope.assignments:
        for alias, module in _list_imports(assignment):
            is_package = alias.asname is None or module == "ray"
            if module.split(".")[0] == "ray" and is_package:
                bindings[assignment.name.split(".")[0]].imports.append((alias, module))
            elif mapped := plan.map_name(module):
                plan.aliases[alias] = [alias.with_changes(name=_make_name(mapped[1] + module[len(mapped[0]) :]))]
    for assignment in scope.assignments:
        is_import = isinstance(assignment, Assignment) and isinstance(assignment.node, cst.Import)
        if assignment.name in bindings and not is_import:
            bindings[assignment.name].has_core = True  # As in `except ImportError: ray = None`.
    return bindings


def _find_root(node: cst.CSTNode) -> str:
    return "ray" if isinstance(node, cst.BaseString) else (get_full_name_for_node(node) or "").split(".")[0]


def _list_imports(assignment: object) -> Iterator[tuple[cst.ImportAlias, str]]:
    """The aliases of the `import` statement that binds this name, with their modules."""
    if isinstance(assignment, Assignment) and isinstance(assignment.node, cst.Import):
        for alias in assignment.node.names:
            bound = alias.evaluated_alias or alias.evaluated_name
            if bound == assignment.name:
                yield alias, alias.evaluated_name


def _plan_use(plan: RewritePlan, binding: _Binding, node: cst.CSTNode, bound: str, parents: object) -> None:
    """Plan one use of the package: it needs Ray, or Paceline, or both if it is a text."""
    if isinstance(node, cst.BaseString):  # An annotation.
        text = node.value if isinstance(node, cst.SimpleString) else ""
        new = _replace_in_text(plan, text)
        if new != text:
            plan.strings[node], binding.has_ours = new, True
        binding.has_core = binding.has_core or bool(_IN_TEXT.search(new)) or not text
        return
    while isinstance(parent := parents[node], cst.Attribute) and parent.value is node:  # type: ignore[index]
        node = parent
    path = "ray" + (get_full_name_for_node(node) or bound)[len(bound) :]
    mapped = plan.map_name(path)
    if mapped is None:
        plan.kept.append((node, path))
        binding.has_core = True
        return
    for _ in range(path.count(".") - mapped[0].count(".")):
        assert isinstance(node, cst.Attribute)
        node = node.value
    plan.names[node], binding.has_ours = mapped[1], True
    binding.uses.append(node)


def _plan_imports(plan: RewritePlan, binding: _Binding, name: str) -> None:
    is_bound = any(plan.map_name(module) is None for _, module in binding.imports)
    needs_ray = binding.has_core and not is_bound
    keeps_name = name != "ray" and not binding.has_core
    if keeps_name:  # `import ray as r` becomes `import paceline as r`.
        plan.names.update({node: name + plan.names[node].removeprefix("paceline") for node in binding.uses})
    for alias, module in binding.imports:
        mapped = plan.map_name(module)
        if mapped is not None:  # `import ray.train`
            ours = alias.with_changes(name=_make_name(mapped[1] + module[len(mapped[0]) :]))
            ray = [cst.ImportAlias(name=cst.Name("ray"))] if needs_ray else []
            plan.aliases[alias], needs_ray = [ours, *ray], False
        elif module == "ray":
            ours = cst.ImportAlias(name=cst.Name("paceline"), asname=alias.asname if keeps_name else None)
            plan.aliases[alias] = [*([ours] if binding.has_ours else []), *([alias] if binding.has_core else [])]
        else:
            plan.kept.append((alias, module))


def _replace_in_text(plan: RewritePlan, text: str) -> str:
    def replace(found: re.Match[str]) -> str:
        mapped = plan.map_name(found[0])
        return mapped[1] + found[0][len(mapped[0]) :] if mapped else found[0]

    return _IN_TEXT.sub(replace, text)


class _StringFinder(cst.CSTVisitor):
    """Finds strings that name a module: arguments of importing functions, values in a runtime environment."""

    def __init__(self, plan: RewritePlan) -> None:
        self.plan = plan

    def visit_Call(self, node: cst.Call) -> None:
        name = (get_full_name_for_node(node.func) or "").rpartition(".")[2]
        if name in IMPORTERS and node.args:
            self._take(node.args[0].value)

    def visit_Arg(self, node: cst.Arg) -> None:
        if node.keyword is not None and node.keyword.value in RUNTIME_ENV:
            self._take_all(node.value)

    def visit_Assign(self, node: cst.Assign) -> None:
        if any(get_full_name_for_node(each.target) in RUNTIME_ENV for each in node.targets):
            self._take_all(node.value)

    def visit_DictElement(self, node: cst.DictElement) -> None:
        if isinstance(node.key, cst.SimpleString) and node.key.evaluated_value in RUNTIME_ENV:
            self._take_all(node.value)

    def _take_all(self, node: cst.CSTNode) -> None:
        finder = self

        class Strings(cst.CSTVisitor):
            def visit_SimpleString(self, node: cst.SimpleString) -> None:
                finder._take(node)

        node.visit(Strings())

    def _take(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.SimpleString) and MODULE_NAME.fullmatch(str(node.evaluated_value)):
            self.plan.strings[node] = _replace_in_text(self.plan, node.value)


class _Rewriter(cst.CSTTransformer):
    def __init__(self, plan: RewritePlan) -> None:
        self.plan = plan
        self._removed: set[cst.CSTNode] = set()
        self._added: set[cst.CSTNode] = set()
        """Lines `import paceline`; one in a block is enough."""

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if original_node not in self.plan.names:
            return updated_node
        new = _make_name(self.plan.names[original_node])
        return new.with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar)

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> cst.SimpleString:
        return updated_node.with_changes(value=self.plan.strings.get(original_node, updated_node.value))

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.SimpleStatementLine]:
        if len(original_node.body) > 1 or not isinstance(original_node.body[0], cst.Import | cst.ImportFrom):
            return updated_node.with_changes(body=self._replace_all(original_node.body, updated_node.body))
        new = self._replace(original_node.body[0], updated_node.body[0])
        if new == [updated_node.body[0]]:
            return updated_node
        comment = updated_node.trailing_whitespace.comment
        is_for_all = comment is not None and "noqa" in comment.value
        lines = [
            cst.SimpleStatementLine(
                body=[statement],
                leading_lines=updated_node.leading_lines if at == 0 else (),
                trailing_whitespace=updated_node.trailing_whitespace
                if at == 0 or is_for_all
                else cst.TrailingWhitespace(),
            )
            for at, statement in enumerate(new)
        ]
        if not lines:
            self._removed.add(updated_node)
            return updated_node
        self._added |= {line for line in lines if line.body[0] is new[0] and _is_import(new[0], "paceline")}
        return cst.FlattenSentinel(lines)

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.SimpleStatementSuite:
        return updated_node.with_changes(body=self._replace_all(original_node.body, updated_node.body))

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body, rest = self._drop_removed(updated_node.body)
        body = body or [cst.SimpleStatementLine(body=[cst.Pass()])]
        return updated_node.with_changes(body=body, footer=[*rest, *updated_node.footer])

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        body, rest = self._drop_removed(updated_node.body)
        return updated_node.with_changes(body=body, footer=[*rest, *updated_node.footer])

    def _drop_removed(self, body: Sequence[Statement]) -> tuple[list[Statement], list[cst.EmptyLine]]:
        """Drop the lines that were removed; what stood above one of them stands above the next, or is returned."""
        left: list[Statement] = []
        above: list[cst.EmptyLine] = []
        is_imported = False
        for statement in body:
            is_removed = statement in self._removed or (is_imported and statement in self._added)
            is_imported = is_imported or statement in self._added
            if isinstance(statement, cst.SimpleStatementLine) and is_removed:
                above += statement.leading_lines
                continue
            own: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
            if above:
                is_blank = not any(line.comment for line in above)
                lines = max(above, own, key=len) if is_blank else [*above, *own]
                statement = statement.with_changes(leading_lines=lines)
                above = []
            left.append(statement)
        return left, [line for line in above if line.comment]

    def _replace_all(self, before: SmallStatements, after: SmallStatements) -> SmallStatements:
        new = [each for pair in zip(before, after, strict=True) for each in self._replace(*pair)]
        return new or [cst.Pass()]

    def _replace(self, before: cst.BaseSmallStatement, after: cst.BaseSmallStatement) -> SmallStatements:
        if isinstance(before, cst.Import) and isinstance(after, cst.Import):
            return self._replace_import(before, after)
        if isinstance(before, cst.ImportFrom) and isinstance(after, cst.ImportFrom) and not before.relative:
            return self._replace_import_from(after)
        return [after]

    def _replace_import(self, before: cst.Import, after: cst.Import) -> SmallStatements:
        if not any(alias in self.plan.aliases for alias in before.names):
            return [after]
        names = [new for alias in before.names for new in self.plan.aliases.get(alias, [alias])]
        if len(before.names) == 1:
            return [after.with_changes(names=[name]) for name in names]
        return [after.with_changes(names=_end_names(names))] if names else []

    def _replace_import_from(self, after: cst.ImportFrom) -> SmallStatements:
        module = get_full_name_for_node(after.module) if after.module else None
        if module == "ray" and not isinstance(after.names, cst.ImportStar):
            ours = [each for each in after.names if self.plan.map_name(f"ray.{each.evaluated_name}")]
            others = [each for each in after.names if each not in ours]
            new = after.with_changes(module=cst.Name("paceline"))
            if not ours or not others:
                return [new if ours else after]
            end = after.names[-1].comma
            return [new.with_changes(names=_end_names(ours, end)), after.with_changes(names=_end_names(others, end))]
        if module is None or not find_prefix(module):
            return [after]
        new = after.with_changes(module=_make_name(to_paceline(module)))
        if isinstance(after.names, cst.ImportStar):
            return [new]
        renamed = [each for each in after.names if f"{module}.{each.evaluated_name}" in MODULES]
        others = [each for each in after.names if each not in renamed]
        lines = [new.with_changes(names=_end_names(others, after.names[-1].comma))] if others else []
        return [*lines, *(_import_renamed(after, module, each) for each in renamed)]


def _import_renamed(statement: cst.ImportFrom, module: str, alias: cst.ImportAlias) -> cst.ImportFrom:
    """Import a module that has another name here, by its name in Ray."""
    package, _, name = MODULES[f"{module}.{alias.evaluated_name}"].rpartition(".")
    asname = alias.asname or cst.AsName(cst.Name(alias.evaluated_name))
    new = cst.ImportAlias(cst.Name(name), asname)
    return statement.with_changes(module=_make_name(package), names=[new], lpar=None, rpar=None)


def _end_names(
    names: Sequence[cst.ImportAlias], end: cst.Comma | cst.MaybeSentinel = cst.MaybeSentinel.DEFAULT
) -> list[cst.ImportAlias]:
    """Give the last name what stood after the last one before."""
    return [*names[:-1], names[-1].with_changes(comma=end)]


def _is_import(statement: cst.BaseSmallStatement, module: str) -> bool:
    names = statement.names if isinstance(statement, cst.Import) else ()
    return [(each.evaluated_name, each.asname) for each in names] == [(module, None)]


def _make_name(path: str) -> cst.Name | cst.Attribute:
    first, *rest = path.split(".")
    name: cst.Name | cst.Attribute = cst.Name(first)
    for part in rest:
        name = cst.Attribute(value=name, attr=cst.Name(part))
    return name
