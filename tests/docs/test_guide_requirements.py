"""No guide ends at a missing package: what a page imports, it says to install, or the first guide has installed it."""

import re
import sys
from pathlib import Path

import pytest

from paceline._core.lazy_imports import EXTRA_OF

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.glob("*/*.md"))
ALWAYS = {"__future__", "paceline", "cloudpickle", "msgspec", "numpy", "psutil", "pyarrow", "xxhash"}
USES_PANDAS = re.compile(r"\.to_pandas\(|metrics_dataframe|get_dataframe\(|batch_format=\"pandas\"")


def installed(text: str) -> set[str]:
    """Packages and extras that a page's `pip install` lines name."""
    extras = {extra for group in re.findall(r"(?:paceline|\.)\[([\w,]+)\]", text) for extra in group.split(",")}
    return extras | {word for line in re.findall(r"pip install\s+([^`\n]+)", text) for word in line.split()}


def imported(text: str) -> set[str]:
    blocks = re.findall(r"^ *```python\b[^\n]*\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    names = {name for block in blocks for name in re.findall(r"^\s*(?:from|import) +(\w+)", block, re.MULTILINE)}
    names |= {"pandas" for block in blocks if USES_PANDAS.search(block)}
    return names - ALWAYS - set(sys.stdlib_module_names)


FIRST = installed((DOCS / "guides" / "first-run.md").read_text())


def test_the_first_guide_installs_extras():
    assert {"torch", "pandas", "tune", "dashboard"} <= FIRST


@pytest.mark.parametrize("page", PAGES)
def test_a_page_imports_what_is_installed_by_then(page):
    text = (DOCS / page).read_text()
    known = FIRST | installed(text)
    assert [name for name in sorted(imported(text)) if EXTRA_OF.get(name, name) not in known] == []
