"""The docs name what there is: every environment variable with its default, and tests that exist."""

import ast
import re
from pathlib import Path

import pytest

from paceline._core import settings

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(PACELINE_\w+)` \| `([^`]*)` \|", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")

DOCUMENTED = dict(ROW.findall((ROOT / "docs" / "environment.md").read_text()))
NAMED = [
    (page.relative_to(ROOT).as_posix(), path, name)
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for path, name in TEST.findall(page.read_text())
]


class Recorded(dict[str, str]):
    """An environment that remembers what it was asked for."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.asked: set[str] = set()

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.asked.add(name)
        return super().get(name, default)


def test_the_documented_variables_are_those_that_are_read() -> None:
    environ = Recorded()
    settings.load(environ)
    assert set(DOCUMENTED) == {name for name in environ.asked if name.startswith("PACELINE_")}
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


@pytest.mark.parametrize(("page", "path", "name"), NAMED, ids=lambda part: part.rsplit("/", 1)[-1])
def test_a_test_that_the_docs_name_exists(page: str, path: str, name: str) -> None:
    file = ROOT / path
    assert file.exists(), f"{page} names {path}"
    defined = {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}
    defined |= set(re.findall(r"^(Test\w+) = ", file.read_text(), re.MULTILINE))
    assert not name or name in defined, f"{page} names {name}, which {path} does not define"
