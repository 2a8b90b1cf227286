"""The docs list what there is: every environment variable that is read, with its default, and every module."""

import re
from pathlib import Path

import pytest

from paceline._core import settings

ROOT = Path(__file__).parents[2]
FOLDER = re.compile(r"^((?:  )+)(\w+)/")
ROW = re.compile(r"^\| `(PACELINE_\w+)` \| `([^`]*)` \|", re.MULTILINE)

DOCUMENTED = dict(ROW.findall((ROOT / "docs" / "reference" / "environment.md").read_text()))


def test_the_documented_variables_are_those_that_are_read() -> None:
    assert set(DOCUMENTED) == set(re.findall(r'"(PACELINE_\w+)"', Path(settings.__file__).read_text()))


def test_the_documented_defaults_are_the_defaults() -> None:
    assert settings.load(DOCUMENTED) == settings.load({})


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_documented_variable_has_an_effect(name: str) -> None:
    for value in ("0", "1", "2", "spawn", "ray", "elsewhere"):
        try:
            if settings.load({name: value}) != settings.load({}):
                return
        except ValueError:
            continue
    pytest.fail(f"{name} changes no setting")


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


def test_the_map_lists_exactly_the_modules_there_are() -> None:
    package = ROOT / "src" / "paceline"
    there = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if path.name != "__init__.py"}
    assert read_map() == there
