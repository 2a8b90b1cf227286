"""What the pages name of the repository is there: tests by name, files and folders, and functions beside their file.

A page that promises something and names a test for it must not outlive the test. Files are looked for as they are
written: from the root, from the page, or below `src/paceline`, as in "`_control/step.py`".
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "paceline"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

TOP = ("tests", "tools", "src", "examples", "benchmarks", "frontend", "docs", r"\.ci", r"\.github")
TEST = re.compile(r"\btests/[\w/.-]*\w\.py((?:::\w+)+)")
FILE = re.compile(rf"(?<![\w/.])(?:{'|'.join(TOP)})/[\w/.-]*\w\.(?:py|md|ts|tsx|mjs|json|toml|yml|ipynb|png)\b")
FOLDER = re.compile(rf"`((?:{'|'.join(TOP)})/[\w/.-]*)`")
BELOW = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.py)\b[^`]*`")
"""A path of code within backticks: below the package, if nowhere else."""
LINK = re.compile(r"\]\(([^)#\s:]+\.py)\)")
BESIDE = re.compile(r"\[`([\w/]+\.py)`\]\(([^)\s]+)\)((?:(?:,| and)\s+`[\w.]+`)+)")
"""A linked file, and what is named right after it: "[`a.py`](...), `f` and `C.g`"."""


@functools.cache
def defined(file: Path) -> frozenset[str]:
    """Functions, classes and constants of a file; what lies in a class as `Class.name` and as `name`."""
    names: set[str] = set()

    def collect(body: list[ast.stmt], within: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                own = [node.name]
            else:
                targets = getattr(node, "targets", [getattr(node, "target", None)])
                own = [target.id for target in targets if isinstance(target, ast.Name)]
            names.update(own, (f"{within}{name}" for name in own))
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{node.name}.")

    collect(ast.parse(file.read_text()).body, "")
    return frozenset(names)


def find_missing(text: str, page: Path) -> Iterator[str]:
    """What a page names and is not there."""
    named = [*FILE.findall(text), *FOLDER.findall(text), *BELOW.findall(text), *LINK.findall(text)]
    for path in dict.fromkeys(named):
        if not any((base / path).exists() for base in (ROOT, page.parent, PACKAGE)):
            yield f"the path {path}"
    for match in TEST.finditer(text):
        path, _, name = match[0].partition("::")
        file = ROOT / path
        if file.exists() and name.replace("::", ".") not in defined(file):
            yield f"the test {match[0]}"
    for shown, target, names in BESIDE.findall(text):
        file = (page.parent / target).resolve()
        if not file.as_posix().endswith(f"/{shown}"):
            yield f"the link from {shown} to {target}"
        elif file.exists():
            yield from (f"{name} in {shown}" for name in re.findall(r"`([\w.]+)`", names) if name not in defined(file))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_paths_and_names_on_a_page_exist(page: Path) -> None:
    assert list(find_missing(page.read_text(), page)) == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`tests/docs/test_named_tests.py::test_gone`", "the test tests/docs/test_named_tests.py::test_gone"),
        ("see `_control/gone.py` in `tests/docs`", "the path _control/gone.py"),
        ("[`_control/step.py`](../../src/paceline/_control/step.py), `gone`", "gone in _control/step.py"),
    ],
)
def test_missing_paths_and_names_are_reported(text: str, missing: str) -> None:
    assert list(find_missing(text, ROOT / "docs" / "concepts" / "page.md")) == [missing]
