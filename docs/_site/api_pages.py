"""The pages of the reference: one for each public module, written in Markdown as all pages are.

A name that several modules have is told of once, in the first of them. A public name without a docstring is a warning.
"""

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

from api_docs import first_sentence, markdown
from api_members import Member, doc_of_class, members, signature
from api_source import Found, Module, Sources
from sphinx.util import logging

logger = logging.getLogger(__name__)

_PACKAGES = {"paceline", "train", "tune", "data", "testing", "air"}
"""What a name may begin with when it is written short: `train.report`."""

_OF_OTHERS = {"Trainer", "Callback", "Tokenizer", "load_checkpoint", "save_checkpoint"}
"""Alone these are as often Lightning's or Transformers', or the methods of a `Trainable`."""


def pages(sources: Sources) -> dict[str, str]:
    """The text of each page, by its name."""
    reference = _Reference(sources)
    made = {_page(module): "\n".join(reference.module(module)) for module in sources.public}
    return made | {"reference/index": "\n".join(reference.index())} if made else {}


def linked_names(sources: Sources) -> dict[str, tuple[str, str]]:
    """What may stand as inline code and lead to the reference: the page and the anchor of each."""
    reference = _Reference(sources)
    meant: dict[str, set[tuple[str, str]]] = {}
    for module, names in sources.public.items():
        meant.setdefault(module, set()).add((_page(module), ""))
        for name in names:
            target = reference.entry(module, name)
            for written in _ways_to_write(module, name):
                meant.setdefault(written, set()).add(target)
            found = sources.find(module, name)
            if found is not None and isinstance(found.node, ast.ClassDef) and name not in _OF_OTHERS:
                own, inherited = members(sources, found, reference.public)
                told_of = [(target, member) for member in own]
                told_of += [(reference.entry_of(home), member) for home, member in inherited]
                for (page, anchor), member in told_of:
                    at = f"{anchor}.{member.name}" if member.has_entry else anchor
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
                    self._entries.setdefault((found.module.name, found.name), (_page(module), name))

    @property
    def public(self) -> set[tuple[str, str]]:
        return set(self._entries)

    def entry(self, module: str, name: str) -> tuple[str, str]:
        """The page and the anchor where a public name is told of."""
        found = self._found(module, name)
        if found.node is None and found.name in self._sources.public:
            return _page(found.name), ""
        return self._entries.get((found.module.name, found.name), (_page(module), name))

    def entry_of(self, found: Found) -> tuple[str, str]:
        return self._entries[found.module.name, found.name]

    def index(self) -> Iterator[str]:
        yield "## All names\n"
        for module, names in self._sources.public.items():
            yield f"### [`{module}`]({module}.md)\n\n| | |\n| --- | --- |"
            for name in names:
                page, anchor = self.entry(module, name)
                about = first_sentence(self._doc(self._found(module, name))).replace("|", "\\|")
                yield f"| [`{name}`]({page.removeprefix('reference/')}.md{anchor and '#' + anchor}) | {about} |"
            yield ""

    def module(self, module: str) -> Iterator[str]:
        at = self._sources.module(module)
        assert at is not None
        yield f"# {module}\n\n{markdown(at.doc)}\n"
        if not at.doc:
            logger.warning("the public module has no docstring", location=f"{self._short(at)}:1")
        for name in self._sources.public[module]:
            yield from self._entry(module, name)

    def _entry(self, module: str, name: str) -> Iterator[str]:
        found = self._found(module, name)
        page, anchor = self.entry(module, name)
        yield f"<!-- id: {name} -->\n## `{name}`\n"
        if found.node is None:
            yield f"{first_sentence(found.module.doc)}\n"
            if anchor == "":
                yield f"The module [`{found.name}`]({page.removeprefix('reference/')}.md).\n"
            return
        if (page, anchor) != (_page(module), name):
            there = f"{page.removeprefix('reference/')}.{anchor}"
            link = f"#{anchor}" if page == _page(module) else f"{page.removeprefix('reference/')}.md#{anchor}"
            yield f"The same as [`{there}`]({link}).\n"
            return
        doc = self._doc(found)
        if not doc and name != "__version__":
            where = f"{self._short(found.module)}:{found.line}"
            logger.warning("the public name %s.%s has no docstring", module, name, location=where)
        yield f"```python\n{signature(self._sources, found).replace(found.name, name, 1)}\n```\n"
        yield markdown(doc) + "\n"
        if isinstance(found.node, ast.ClassDef):
            yield from self._class(found, name)
        yield f"Source: [`{self._short(found.module)}`]({self._link(found.module)}#L{found.line})\n"

    def _class(self, found: Found, name: str) -> Iterator[str]:
        own, inherited = members(self._sources, found, self.public)
        with_heading = [member for member in own if member.kind == "method" and member.doc]
        for member in own:
            if member.has_entry and member not in with_heading:
                yield f"- <!-- id: {name}.{member.name} -->\n  `{' '.join(member.signature.split())}`\n"
                yield "".join(f"  {line}\n" for line in markdown(member.doc).splitlines())
        if inherited:
            yield self._inherited(inherited) + "\n"
        for member in with_heading:
            yield f"<!-- id: {name}.{member.name} -->\n### `{member.name}`\n"
            yield f"```python\n{member.signature}\n```\n"
            yield markdown(member.doc) + "\n"

    def _inherited(self, inherited: list[tuple[Found, Member]]) -> str:
        by_class: dict[tuple[str, str], list[str]] = {}
        for home, member in inherited:
            if member.has_entry:
                by_class.setdefault(self.entry_of(home), []).append(member.name)
        told = []
        for (page, anchor), names in by_class.items():
            at = f"{page.removeprefix('reference/')}.md#{anchor}"
            shown = ", ".join(f"[`{name}`]({at}.{name})" for name in names)
            told.append(f"From [`{anchor}`]({at}): {shown}.")
        return " ".join(told)

    def _doc(self, found: Found) -> str:
        node = found.node
        if node is None:
            return found.module.doc
        if isinstance(node, ast.ClassDef):
            return doc_of_class(self._sources, found)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return ast.get_docstring(node) or ""
        return found.module.docs_below(found.module.tree.body).get(found.name, "")

    def _found(self, module: str, name: str) -> Found:
        found = self._sources.find(module, name)
        assert found is not None
        return found

    def _is_alias(self, module: str, name: str) -> bool:
        found = self._sources.find(module, name)
        return found is not None and found.node is not None and found.name != name

    def _short(self, module: Module) -> str:
        return Path(module.path).relative_to(self._sources.src.parent).as_posix()

    def _link(self, module: Module) -> str:
        return f"../../{self._short(module)}"
