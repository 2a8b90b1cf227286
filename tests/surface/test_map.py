"""The map of the package in docs/design.md is the tree as it is."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = re.compile(r"^((?:  )+)(\w+)/")


def read_map() -> set[str]:
    """The modules that the map lists, as paths below src/paceline."""
    page = (ROOT / "docs" / "design.md").read_text()
    block = page.split("```\nsrc/paceline/\n")[1].split("\nfrontend/")[0]
    folders: list[str] = []
    modules = set()
    for line in block.splitlines():
        if match := FOLDER.match(line):
            folders = [*folders[: len(match[1]) // 2 - 1], match[2]]
        else:
            modules |= {"/".join([*folders, name]) for name in line.split()}
    return modules


def test_the_map_lists_exactly_the_modules_there_are():
    package = ROOT / "src" / "paceline"
    there = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if path.name != "__init__.py"}
    assert read_map() == there
