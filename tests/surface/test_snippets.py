"""Every Python block of the README and the docs runs as written.

The blocks of one page run in order as one script, in a directory of its own. The script is the page with all
but its Python blanked out, so a traceback's line number is the line of the page. `<!-- not run: reason -->`
above a block leaves it out, and the reason is listed among the skipped tests.
"""

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Block:
    line: int
    """The number of its first line of code in the page."""
    code: str
    not_run: str | None


def blocks(page: str) -> list[Block]:
    """The Python blocks of a page, in order."""
    return [
        Block(page.count("\n", 0, match.start("code")) + 1, textwrap.dedent(match["code"]), match["not_run"])
        for match in BLOCK.finditer(page)
    ]


def script(page: str) -> str:
    """The page as a program: its Python where it stands, blank lines for the rest."""
    lines: list[str] = []
    for block in blocks(page):
        if block.not_run is None:
            lines.extend([""] * (block.line - 1 - len(lines)))
            lines.extend(block.code.splitlines())
    return "\n".join(lines) + "\n"


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


RUN = [page for page in PAGES if script(page.read_text()).strip()]
LEFT_OUT = [
    f"{_name(page)}:{block.line} ({block.not_run})"
    for page in PAGES
    for block in blocks(page.read_text())
    if block.not_run is not None
]


# Their workers are fresh interpreters. Those that would be started to wait for the next run cost seconds for nothing.
STARTS_NOTHING_AHEAD = {"docs/frameworks/jax.md", "docs/frameworks/tensorflow.md"}

NEEDS = {"docs/frameworks/trees.md": "xgboost"}
"""What may be missing where not everything could be installed."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", RUN, ids=_name)
def test_the_blocks_of_a_page_run(page: Path, run_script: Callable[..., CompletedProcess[str]]) -> None:
    needed = NEEDS.get(_name(page))
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed: {_name(page)} was not run")
    env = {"PACELINE_PREWARM": "0"} if _name(page) in STARTS_NOTHING_AHEAD else {}
    ended = run_script(script(page.read_text()), timeout=280, env=env)
    assert ended.returncode == 0, f"{_name(page)} (lines are those of the page)\n{ended.stdout}{ended.stderr}"


def test_every_block_runs_or_says_why_not() -> None:
    if LEFT_OUT:
        pytest.skip("not run: " + "; ".join(LEFT_OUT))


PAGE = """\
# A page

```python
x = 1
```

In a list:

1. indented
   ```python
   def f():
       return x + 1
   ```

<!-- not run: it needs a cluster -->

```python
connect()
```

```bash
make demo
```

```python
assert f() == {answer}, "the answer"
```
"""


def test_blocks_run_in_order_as_one_script(run_script: Callable[..., CompletedProcess[str]]) -> None:
    ended = run_script(script(PAGE.format(answer=2)))
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_broken_block_fails_at_its_line_of_the_page(
    run_script: Callable[..., CompletedProcess[str]],
) -> None:
    page = PAGE.format(answer=3)
    (line,) = (number for number, text in enumerate(page.splitlines(), start=1) if "answer" in text)
    ended = run_script(script(page))
    assert ended.returncode == 1
    assert f"line {line}, in <module>" in ended.stderr
    assert "AssertionError: the answer" in ended.stderr


def test_a_block_under_a_comment_is_left_out_with_its_reason() -> None:
    left_out = [(block.code, block.not_run) for block in blocks(PAGE) if block.not_run]
    assert left_out == [("connect()\n", "it needs a cluster")]


def test_a_comment_holds_for_the_next_block_only() -> None:
    page = "<!-- not run: a -->\ntext between\n```python\nx = 1\n```\n```python\ny = 1\n```\n"
    assert [block.not_run for block in blocks(page)] == [None, None]
