"""The docs name every environment variable that is read, with its default."""

import re
from pathlib import Path

import pytest

from paceline._core import settings

ROOT = Path(__file__).parents[2]
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
