"""The public names as the sources have them: read, not imported, so that no framework is loaded or needed.

A module's names are those of its `__all__`, else what it defines without a leading underscore. Each is followed through
imports, and through the tables of what is loaded on demand, to where it is defined.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

MODULES = (
    "paceline",
    "paceline.train",
    "paceline.train.torch",
    "paceline.train.jax",
    "paceline.train.tensorflow",
    "paceline.train.tensorflow.keras",
    "paceline.train.lightgbm",
    "paceline.train.xgboost",
    "paceline.train.lightning",
    "paceline.train.huggingface.transformers",
    "paceline.train.loggers",
    "paceline.train.collective",
    "paceline.data",
    "paceline.data.datasource",
    "paceline.data.preprocessors",
    "paceline.data.expressions",
    "paceline.data.datatype",
    "paceline.tune",
    "paceline.tune.search",
    "paceline.tune.search.optuna",
    "paceline.tune.schedulers",
    "paceline.tune.stopper",
    "paceline.tune.analysis",
    "paceline.tune.experiment",
    "paceline.tune.progress_reporter",
    "paceline.tune.registry",
    "paceline.tune.checks",
    "paceline.tune.logger",
    "paceline.tune.plots",
    "paceline.tune.importance",
    "paceline.tune.integration.train",
    "paceline.tune.integration.lightning",
    "paceline.tune.integration.pytorch_lightning",
    "paceline.tune.integration.keras",
    "paceline.tune.integration.lightgbm",
    "paceline.tune.integration.xgboost",
    "paceline.testing",
    "paceline.air",
    "paceline.air.config",
    "paceline.air.session",
)
"""In the order of their pages. A name that several have is told of in the first, and the others lead there."""

BESIDE_ALL = {"paceline.train": ("max", "mean", "min", "sum")}
"""Public, and left out of `__all__` for the sake of Python's own."""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign


@dataclass
class Module:
    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def doc(self) -> str:
        return ast.get_docstring(self.tree) or ""

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def defined(self) -> dict[str, Definition]:
        found: dict[str, Definition] = {}
        for node in self._statements():
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign) and (name := assigned(node)):
                found[name] = node
        return found

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """Names that come from elsewhere: the module and the name there."""
        found: dict[str, tuple[str, str]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Dict):
                found |= _on_demand(node)
        return found

    def docs_below(self, body: Sequence[ast.stmt]) -> dict[str, str]:
        """What stands as a text under an assignment."""
        return {
            name: _cleaned(below.value.value)
            for node, below in pairwise(body)
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and (name := assigned(node))
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        }

    def written(self, node: ast.expr) -> str:
        """The source of an expression, on one line."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            return f'"{node.value}"'
        if node.lineno != node.end_lineno or not (line := self.lines[node.lineno - 1]).isascii():
            return ast.unparse(node)
        return line[node.col_offset : node.end_col_offset]

    def _statements(self) -> Iterator[ast.stmt]:
        for node in self.tree.body:
            if isinstance(node, ast.If | ast.Try):
                yield from node.body
                yield from node.orelse
            else:
                yield node


@dataclass(frozen=True)
class Found:
    """Where a name is defined. A module has no definition: it is one."""

    module: Module
    name: str
    node: Definition | None

    @property
    def line(self) -> int:
        return self.node.lineno if self.node else 1


@dataclass
class Sources:
    """All that was read, by the name of the module."""

    src: Path
    public: dict[str, list[str]] = field(default_factory=dict)
    """The public names of each module that has a page, in order."""
    _modules: dict[str, Module | None] = field(default_factory=dict)

    def module(self, name: str) -> Module | None:
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> Module | None:
        base = self.src.joinpath(*name.split("."))
        for path in (base / "__init__.py", base.with_suffix(".py")):
            if path.is_file():
                text = path.read_text()
                return Module(name, path, text, ast.parse(text))
        return None

    def find(self, module: str, name: str) -> Found | None:
        """Where a name of a module is defined; None if that is not in these sources."""
        at = self.module(module)
        if at is None:
            return None
        if name in at.defined:
            node = at.defined[name]
            value = node.value if isinstance(node, ast.Assign) else None
            if isinstance(value, ast.Name) and (same := self.find(module, value.id)):
                return same
            return Found(at, name, node)
        if name in at.imported:
            home, there = at.imported[name]
            if (submodule := self.module(f"{home}.{there}")) is not None:
                return Found(submodule, submodule.name, None)
            return self.find(home, there)
        if (submodule := self.module(f"{module}.{name}")) is not None:
            return Found(submodule, submodule.name, None)
        if "__all__" in at.imported:
            return self.find(at.imported["__all__"][0], name)
        return None

    def names(self, module: str) -> list[str]:
        """The public names of a module, in the order of the alphabet."""
        at = self.module(module)
        if at is None:
            raise LookupError(f"there is no module {module} under {self.src}")
        if "__all__" in at.imported:
            return self.names(at.imported["__all__"][0])
        if isinstance(told := at.defined.get("__all__"), ast.Assign):
            known = {"sorted": sorted} | _constants(at)
            listed = eval(compile(ast.Expression(told.value), str(at.path), "eval"), known)
            return sorted([*listed, *BESIDE_ALL.get(module, ())], key=str.lower)
        return sorted(
            (
                name
                for name in at.defined
                if not name.startswith("_") and not isinstance(self.find(module, name).node, ast.Assign | ast.AnnAssign)
            ),
            key=str.lower,
        )

    def parents(self, found: Found) -> list[Found]:
        """The classes of these sources that a class names as its bases."""
        assert isinstance(found.node, ast.ClassDef)
        named = [base.value if isinstance(base, ast.Subscript) else base for base in found.node.bases]
        there = [self.find(found.module.name, base.id) for base in named if isinstance(base, ast.Name)]
        return [one for one in there if one is not None and isinstance(one.node, ast.ClassDef)]

    def bases(self, found: Found) -> list[Found]:
        """The classes of these sources that a class is made from, nearest first."""
        result: list[Found] = []
        for parent in self.parents(found):
            result += [one for one in (parent, *self.bases(parent)) if one not in result]
        return result


def read(src: Path, modules: Sequence[str]) -> Sources:
    sources = Sources(src)
    sources.public = {module: sources.names(module) for module in modules}
    return sources


def assigned(node: ast.Assign | ast.AnnAssign) -> str | None:
    """The name that a statement gives a value to, `self.` left out."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if len(targets) != 1:
        return None
    (target,) = targets
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        return target.attr
    return target.id if isinstance(target, ast.Name) else None


def _on_demand(node: ast.Dict) -> dict[str, tuple[str, str]]:
    """What a table `{"paceline.train.result": ("Result",)}` says is where."""
    found: dict[str, tuple[str, str]] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        is_home = isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value.startswith("paceline.")
        if is_home and isinstance(value, ast.Tuple):
            names = [one.value for one in value.elts if isinstance(one, ast.Constant)]
            found |= {name: (key.value, name) for name in names}  # type: ignore[union-attr]
    return found


def _constants(module: Module) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, node in module.defined.items():
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and name != "__all__":
            try:
                found[name] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def _cleaned(doc: str) -> str:
    first, _, rest = doc.partition("\n")
    lines = rest.splitlines()
    depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join([first.strip(), *(line[depth:].rstrip() for line in lines)]).strip()
