"""The pages of the site: which there are, where each lies, and in which order they are shown.

`docs/contents.toml` has them all, by section. Pages of the reference are made while the site is built and lie beside
its other working files; `../README` and the like, notebooks among them, lie outside of docs. Sphinx knows a page by its
name; links in it count from its place in the repository.
"""

import posixpath
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import notebook_page
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.project import Project
from sphinx.util import logging

logger = logging.getLogger(__name__)

OUTSIDE = "repository/"
"""Where on the site the files of the repository are that are not of docs."""

CONTENTS = "contents.toml"


@dataclass(frozen=True)
class Section:
    title: str
    pages: tuple[str, ...]
    titles: dict[str, str]
    """What the contents call a page that has another title of its own."""


class SitePages(Project):
    """The pages, as Sphinx asks for them: its name for each, and the file that has its text."""

    def __init__(self, root: Path, docs: Path, made: Path) -> None:
        super().__init__(docs, [".md"])
        self.root = root
        self.docs = PurePosixPath(docs.resolve().relative_to(root).as_posix())
        self.made = made
        self.files: dict[str, Path] = {}
        """The file that has the text of each page, by its name."""
        self.places: dict[str, PurePosixPath] = {}
        """Where a page lies in the repository, or would, by its name."""
        self.names: dict[str, tuple[str, str]] = {}
        """Public names, each with the page and the anchor of its entry."""
        self.generated: dict[str, str] = {}
        self.sections: list[Section] = []
        self._pages_at: dict[str, str] = {}

    def generate(self, pages: dict[str, str]) -> None:
        """Add pages whose text is made. One that has a file of its own in docs is added to its end."""
        self.generated |= pages

    def discover(self, exclude_paths: object = (), include_paths: object = ()) -> set[str]:
        for path in sorted(Path(self.srcdir).rglob("*.md")):
            inside = path.relative_to(self.srcdir)
            if not inside.parts[0].startswith("_"):
                self._add(inside.with_suffix("").as_posix(), path, self.docs / inside.as_posix())
        self.sections = self._read_contents()
        for section in self.sections:
            for name in section.pages:
                if name.startswith(OUTSIDE):
                    self._add_outside(name)
        for name, text in self.generated.items():
            by_hand = self.files.get(name)
            whole = f"{by_hand.read_text()}\n{text}" if by_hand else text
            self._add(name, self._written(name, whole), self.docs / f"{name}.md")
        self.docnames = set(self.files)
        return self.docnames

    def _add_outside(self, name: str) -> None:
        place = PurePosixPath(name.removeprefix(OUTSIDE))
        is_notebook = place.suffix == ".ipynb"
        if not is_notebook:
            place = place.with_name(place.name + ".md")
        if not (self.root / place).is_file():
            return
        path = self._written(name, notebook_page.text(self.root / place)) if is_notebook else self.root / place
        self._add(name, path, place)

    def _written(self, name: str, text: str) -> Path:
        path = self.made / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def _add(self, name: str, file: Path, place: PurePosixPath) -> None:
        self.files[name], self.places[name] = file, place
        self._docname_to_path[name] = file
        self._path_to_docname[file] = name
        self._pages_at[str(place)] = name

    def page_at(self, place: str) -> str | None:
        """The page that lies at this place of the repository, if there is one."""
        return self._pages_at.get(place)

    def told(self, file: str | Path) -> str:
        """A file as a warning names it: by its place in the repository."""
        path = Path(file)
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)

    def order(self) -> list[str]:
        """All pages in the order of the contents."""
        return [name for section in self.sections for name in section.pages if name in self.files]

    def _read_contents(self) -> list[Section]:
        told = tomllib.loads((Path(self.srcdir) / CONTENTS).read_text())
        sections = []
        for one in told["section"]:
            entries = [entry if isinstance(entry, dict) else {"page": entry} for entry in one["pages"]]
            pages = [self._name(entry["page"]) for entry in entries]
            titles = {name: entry["title"] for name, entry in zip(pages, entries, strict=True) if "title" in entry}
            sections.append(Section(one["title"], tuple(pages), titles))
        listed = {name for section in sections for name in section.pages}
        made = tuple(name for name in self.generated if name not in listed)
        return [
            replace(section, pages=section.pages + made) if one.get("generated") else section
            for section, one in zip(sections, told["section"], strict=True)
        ]

    def _name(self, written: str) -> str:
        """The name of a page that the contents have as `guides/data` or `../README`."""
        if not written.startswith("../"):
            return written
        return OUTSIDE + posixpath.normpath(posixpath.join(str(self.docs), written))


def check(app: Sphinx, env: BuildEnvironment) -> None:
    """Every page is in the contents once, and every page of the contents is there."""
    pages = env.project
    assert isinstance(pages, SitePages)
    contents = str(pages.docs / CONTENTS)
    lines = (Path(pages.srcdir) / CONTENTS).read_text().splitlines()
    listed = [name for section in pages.sections for name in section.pages]
    for name in sorted(set(listed)):
        written = f'"{name}"' if not name.startswith(OUTSIDE) else name.removeprefix(OUTSIDE)
        line = next((number for number, line in enumerate(lines, start=1) if written in line), 1)
        if name not in pages.files:
            logger.warning("the page %r is listed and does not exist", name, location=f"{contents}:{line}")
        if listed.count(name) > 1:
            logger.warning("the page %r is listed more than once", name, location=f"{contents}:{line}")
    for name in sorted(pages.files.keys() - set(listed)):
        logger.warning("the page is not listed in %s", contents, location=f"{pages.told(pages.files[name])}:1")
