"""The pages of the reference: one for each public module, in Markdown with the directives of Sphinx for Python.

A name that several modules have is told of once, in the first of them. A public name without a docstring is a warning.
"""

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

from api_docs import first_sentence, markdown
from api_members import Shown, doc_of_class, members, shown
from api_source import Found, Module, Sources
from sphinx.util import logging

logger = logging.getLogger(__name__)

_PACKAGES = {"paceline", "train", "tune", "data", "testing", "air"}
"""What a name may begin with when it is written short: `train.report`."""

_OF_OTHERS = {"Trainer", "Callback", "Tokenizer", "load_checkpoint", "save_checkpoint"}
"""Alone these are as often Lightning's or Transformers', or the methods of a `Trainable`."""


def pages(sources: Sources) -> dict[str, tuple[Path | None, str]]:
    """Each page by its name: the file of its module, and its text. The list of all names is added to a page of docs."""
    reference = _Reference(sources)
    made: dict[str, tuple[Path | None, str]] = {"reference/index": (None, "\n".join(reference.index()))}
    for module in sources.public:
        made[_page(module)] = reference.found_module(module).path, "\n".join(reference.module(module))
    return made


def linked_names(sources: Sources) -> dict[str, tuple[str, str]]:
    """What may stand as inline code and lead to the reference: the page and the anchor of each."""
    reference = _Reference(sources)
    meant: dict[str, set[tuple[str, str]]] = {}
    for module, names in sources.public.items():
        meant.setdefault(module, set()).add((_page(module), ""))
        for name in names:
            target = reference.entry(module, name)
            for written in (target[1], *_ways_to_write(module, name)):
                meant.setdefault(written, set()).add(target)
            found = sources.find(module, name)
            if found is not None and isinstance(found.node, ast.ClassDef):
                own, inherited = members(sources, found, reference.public)
                told_of = [(target, member) for member in own]
                told_of += [(reference.entry_of(home), member) for home, member in inherited]
                for (page, anchor), member in told_of:
                    at = f"{anchor}.{member.name}" if member.has_entry else anchor
                    meant.setdefault(at, set()).add((page, at))
                    if name not in _OF_OTHERS:
                        meant.setdefault(f"{name}.{member.name}", set()).add((page, at))
    return {
        written: next(iter(targets))
        for written, targets in meant.items()
        if len(targets) == 1 and ("." in written or _is_distinct(written))
    }


def _is_distinct(name: str) -> bool:
    """Whether a name alone can only be ours: `prepare_model` and `ScalingConfig`, not `report` or `range`."""
    return ("_" in name.strip("_") or not name.islower()) and not hasattr(builtins, name) and name not in _OF_OTHERS


def _ways_to_write(module: str, name: str) -> Iterator[str]:
    parts = [*module.split("."), name]
    if not module.startswith("paceline.air"):  # Alone, these are methods of today's contexts.
        yield name
    for start in range(len(parts) - 1):
        if parts[start] in _PACKAGES:
            yield ".".join(parts[start:])


def _page(module: str) -> str:
    return f"reference/{module}"


def _entry(module: str, name: str) -> tuple[str, str]:
    """The page of a name and its anchor there, which is what Sphinx calls it."""
    return _page(module), f"{module}.{name}"


def _link(text: str, target: tuple[str, str]) -> str:
    page, anchor = target
    return f"[`{text}`](/{page}.md{anchor and '#' + anchor})"


def _directive(shown: Shown, body: str, ticks: int) -> str:
    """What holds others needs more ticks than they have, and code in a docstring has three."""
    fence = "`" * ticks
    return "\n".join([f"{fence}{{py:{shown.kind}}} {shown.signature}", *shown.options, "", body, fence, ""])


class _Reference:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._entries: dict[tuple[str, str], tuple[str, str]] = {}
        """Where each definition is told of: the page and the anchor."""
        for module, names in sources.public.items():
            # A class under its own name goes before the same under an older one.
            for name in sorted(names, key=lambda name, module=module: self._is_alias(module, name)):
                found = sources.find(module, name)
                if found is None:
                    raise LookupError(f"{module}.{name} is public and is not defined in {sources.src}")
                if found.node is not None:
                    self._entries.setdefault((found.module.name, found.name), _entry(module, name))

    @property
    def public(self) -> set[tuple[str, str]]:
        return set(self._entries)

    def entry(self, module: str, name: str) -> tuple[str, str]:
        """The page and the anchor where a public name is told of."""
        found = self._found(module, name)
        if found.node is None and found.name in self._sources.public:
            return _page(found.name), ""
        return self._entries.get((found.module.name, found.name), _entry(module, name))

    def entry_of(self, found: Found) -> tuple[str, str]:
        return self._entries[found.module.name, found.name]

    def index(self) -> Iterator[str]:
        listed = "\n".join(f"/{_page(module)}" for module in self._sources.public)
        yield f"```{{toctree}}\n:hidden:\n\n{listed}\n```\n"
        yield "## All names\n"
        for module, names in self._sources.public.items():
            yield f"### {_link(module, (_page(module), ''))}\n\n| | |\n| --- | --- |"
            for name in names:
                about = first_sentence(self._doc(self._found(module, name))).replace("|", "\\|")
                yield f"| {_link(name, self.entry(module, name))} | {about} |"
            yield ""

    def module(self, module: str) -> Iterator[str]:
        at = self.found_module(module)
        yield f"# {module}\n\n```{{py:module}} {module}\n```\n\n{markdown(at.doc)}\n"
        if not at.doc:
            logger.warning("the public module has no docstring", location=f"{self._short(at)}:1")
        own = [name for name in self._sources.public[module] if self._is_told_of_in(module, name)]
        if others := [name for name in self._sources.public[module] if name not in own]:
            yield "| | |\n| --- | --- |"
            yield from (f"| `{name}` | {self._elsewhere(module, name)} |" for name in others)
            yield ""
        for name in own:
            yield self._written(module, name)

    def _is_told_of_in(self, module: str, name: str) -> bool:
        return self._found(module, name).node is not None and self.entry(module, name) == _entry(module, name)

    def _elsewhere(self, module: str, name: str) -> str:
        found, target = self._found(module, name), self.entry(module, name)
        if found.node is not None:
            return f"The same as {_link(target[1], target)}."
        about = first_sentence(found.module.doc)
        return about if target[1] else f"{about.removesuffix('.')}: the module {_link(found.name, target)}."

    def _written(self, module: str, name: str) -> str:
        found = self._found(module, name)
        doc = self._doc(found)
        if not doc and name != "__version__":
            where = f"{self._short(found.module)}:{found.line}"
            logger.warning("the public name %s.%s has no docstring", module, name, location=where)
        source = self._short(found.module)
        parts = [markdown(doc), *(self._members(found) if isinstance(found.node, ast.ClassDef) else ())]
        parts.append(f"Source: [`{source}`](/../{source}#L{found.line})")
        return _directive(shown(self._sources, found, name), "\n\n".join(parts), 6)

    def _members(self, found: Found) -> Iterator[str]:
        own, inherited = members(self._sources, found, self.public)
        by_class: dict[tuple[str, str], list[str]] = {}
        for home, member in inherited:
            if member.has_entry:
                by_class.setdefault(self.entry_of(home), []).append(member.name)
        for (page, anchor), names in by_class.items():
            links = ", ".join(_link(name, (page, f"{anchor}.{name}")) for name in names)
            yield f"From {_link(anchor.rpartition('.')[2], (page, anchor))}: {links}."
        for member in own:
            if member.has_entry:
                yield _directive(member.shown, markdown(member.doc), 5)

    def _doc(self, found: Found) -> str:
        node = found.node
        if node is None:
            return found.module.doc
        if isinstance(node, ast.ClassDef):
            return doc_of_class(self._sources, found)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return ast.get_docstring(node) or ""
        return found.module.docs_below(found.module.tree.body).get(found.name, "")

    def found_module(self, name: str) -> Module:
        found = self._sources.module(name)
        assert found is not None
        return found

    def _found(self, module: str, name: str) -> Found:
        found = self._sources.find(module, name)
        assert found is not None
        return found

    def _is_alias(self, module: str, name: str) -> bool:
        found = self._sources.find(module, name)
        return found is not None and found.node is not None and found.name != name

    def _short(self, module: Module) -> str:
        return Path(module.path).relative_to(self._sources.src.parent).as_posix()
