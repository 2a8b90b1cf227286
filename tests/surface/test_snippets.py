"""Every Python block of the README and the docs runs as written.

The blocks of one page run in order as one script, in a directory of its own. The script is the page with all
but its Python blanked out, so a traceback's line number is the line of the page. `<!-- not run: reason -->`
above a block leaves it out.
"""

import importlib.util
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(
    r"""(?: ^ [ ]* <!--[ ]not[ ]run:[ ] (?P<not_run> [^\n]+? ) [ ]--> \s* \n )?
        ^ [ ]* ```python \b [^\n]* \n (?P<code> .*? ) ^ [ ]* ``` [ ]* $""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)


def script(page: str) -> str:
    """The page as a program: its Python where it stands, blank lines for the rest."""
    lines: list[str] = []
    for block in BLOCK.finditer(page):
        if block["not_run"] is None:
            lines += [""] * (page.count("\n", 0, block.start("code")) - len(lines))
            lines += textwrap.dedent(block["code"]).splitlines()
    return "\n".join(lines) + "\n"


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


RUN = [page for page in PAGES if script(page.read_text()).strip()]
assert len(RUN) > 30, "pages with Python are found"

SMOKE = {
    *("README.md", "docs/index.md"),
    *(f"docs/concepts/{name}.md" for name in ("commit-protocol", "engines", "guarantees")),
    *(f"docs/guides/{name}.md" for name in ("callbacks", "data", "faults", "storage")),
    *(f"docs/tune/{name}.md" for name in ("index", "results", "space", "survival")),
}
"""Pages that `make test` runs; the others take longer."""

# Their workers are fresh interpreters. Those that would be started to wait for the next run cost seconds for nothing.
STARTS_NOTHING_AHEAD = {"docs/frameworks/jax.md", "docs/frameworks/tensorflow.md"}

NEEDS = {"docs/frameworks/trees.md": "xgboost"}
"""What may be missing where not everything could be installed."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page", [pytest.param(page, id=_name(page), marks=() if _name(page) in SMOKE else pytest.mark.slow) for page in RUN]
)
def test_the_blocks_of_a_page_run(page: Path, run_script: Callable[..., CompletedProcess[str]]) -> None:
    needed = NEEDS.get(_name(page))
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed: {_name(page)} was not run")
    env = {"PACELINE_PREWARM": "0"} if _name(page) in STARTS_NOTHING_AHEAD else {}
    ended = run_script(script(page.read_text()), timeout=280, env=env)
    assert ended.returncode == 0, f"{_name(page)} (lines are those of the page)\n{ended.stdout}{ended.stderr}"
