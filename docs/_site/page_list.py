"""The pages of the site: which there are, where each lies, and in which order they are shown.

`docs/contents.toml` has them all, by section. `../README` and the like, notebooks among them, lie outside of docs.
Pages of the reference are made of the sources, so the file of such a page is that of its module. Sphinx knows a page by
its name; links in it count from its place in the repository.
"""

import os
import posixpath
import tomllib
from pathlib import Path

import notebook_page
from sphinx.application import Sphinx
from sphinx.project import Project

OUTSIDE = "repository/"
"""Where on the site the files of the repository are that are not of docs."""

Made = dict[str, tuple[Path | None, str]]
"""Pages that are made, by their names: the file each is made of, and its text. Without a file, the text is added to
what the page has in docs."""


class SitePages(Project):
    """The pages, as Sphinx asks for them: its name for each, and the file that has its text."""

    def __init__(self, docs: Path, made: Made, names: dict[str, tuple[str, str]]) -> None:
        super().__init__(docs, [".md"])
        self.root = docs.parent
        self.made = made
        self.names = names
        """Public names, each with the page and the anchor of its entry."""
        self.contents = _contents(docs / "contents.toml")
        """Each section's title and its pages, each with what the contents call it, if that is not its own title."""

    def discover(self, exclude_paths: object = (), include_paths: object = ()) -> set[str]:
        for path in sorted(Path(self.srcdir).rglob("*.md")):
            self._add(path.relative_to(self.srcdir).with_suffix("").as_posix(), path)
        for _, pages in self.contents:
            for name, _ in pages:
                if name.startswith(OUTSIDE):
                    at = self.root / name.removeprefix(OUTSIDE)
                    for path in (at.with_name(f"{at.name}{suffix}") for suffix in (".md", ".ipynb")):
                        if path.is_file():
                            self._add(name, path)
        for name, (file, _) in self.made.items():
            if file is not None:
                self._docname_to_path[name] = self._relative(file)
                self._path_to_docname[Path(f"{name}.md")] = name
        self.docnames = set(self._docname_to_path)
        return self.docnames

    def path2doc(self, filename: str | os.PathLike[str]) -> str | None:
        return self._path_to_docname.get(self._relative(self.srcdir / filename))

    def _add(self, name: str, file: Path) -> None:
        self._docname_to_path[name] = self._relative(file)
        self._path_to_docname[self._relative(file)] = name

    def _relative(self, file: Path) -> Path:
        return Path(os.path.relpath(file, self.srcdir))


def read(app: Sphinx, name: str, source: list[str]) -> None:
    """The text of a page, from what its file has: the pages that are made are made here."""
    pages = app.env.project
    assert isinstance(pages, SitePages)
    if pages.doc2path(name, absolute=False).suffix == ".ipynb":
        source[0] = notebook_page.text(source[0])
    if name in pages.made:
        file, text = pages.made[name]
        source[0] = text if file else f"{source[0]}\n{text}"
    if name == app.config.root_doc:
        source[0] += "".join(_toctree(title, listed, name) for title, listed in pages.contents)


def _toctree(title: str, pages: list[tuple[str, str]], root: str) -> str:
    entries = [("self" if name == root else f"/{name}", called) for name, called in pages]
    lines = [f"{called} <{entry}>" if called else entry for entry, called in entries]
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", "", *lines, "```", ""])


def _contents(file: Path) -> list[tuple[str, list[tuple[str, str]]]]:
    found = []
    for section in tomllib.loads(file.read_text())["section"]:
        entries = [entry if isinstance(entry, dict) else {"page": entry} for entry in section["pages"]]
        found.append((section["title"], [(_name(entry["page"]), entry.get("title", "")) for entry in entries]))
    return found


def _name(written: str) -> str:
    """The name of a page that the contents have as `guides/data` or `../README`."""
    if not written.startswith("../"):
        return written
    return OUTSIDE + posixpath.normpath(written.removeprefix("../")).removesuffix(".ipynb")
