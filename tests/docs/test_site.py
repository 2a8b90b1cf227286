"""The documentation's site: a small one, with mistakes that must be reported, and the real one, which has none."""

import html
import io
import posixpath
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import patch_docutils

ROOT = Path(__file__).parents[2]

# MyST asks its transforms for the application, as Sphinx will no longer have it.
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:sphinx.deprecation.RemovedInSphinx11Warning")

CONTENTS = """
[[section]]
title = "Guides"
pages = ["index", "broken", "gone"]

[[section]]
title = "Reference"
pages = ["reference/index"]

[[section]]
title = "Project"
pages = [{ page = "../README", title = "In short" }]
"""

BROKEN = """# Broken

[no page](nowhere.md)
[no file](../examples/nothing.py)

| a |
| --- |
| [no page](table.md) |

![afar](https://example.org/dot.png)

Some <b>raw HTML.

[no such line](../src/small.py#L99) [not text](images/dot.png) [outside](../../outside.md)

```{note}
Only MyST knows this.
```
"""

FILES = {
    "docs/contents.toml": CONTENTS,
    "docs/index.md": "# The title\n\n[a file](../src/small.py#L1), not MyST's: {role}`text`, [^note].\n",
    "docs/broken.md": BROKEN,
    "docs/lost.md": "# Nobody lists me\n",
    "docs/reference/index.md": "# Reference\n",
    "README.md": "# Read me\n\n![A picture](docs/images/dot.png) [docs](docs/index.md)\n",
    "src/small.py": '"""Small."""\n\n\ndef bare():\n    return 1\n',
    "../outside.md": "# It is there, and is not of the repository\n",
}

NOWHERE = "leads to no page and no file of the repository"
MISTAKES = [
    f"docs/broken.md:3: WARNING: the link 'nowhere.md' {NOWHERE}",
    f"docs/broken.md:3: WARNING: the link '../examples/nothing.py' {NOWHERE}",
    f"docs/broken.md:8: WARNING: the link 'table.md' {NOWHERE}",
    "docs/broken.md:10: WARNING: the image 'https://example.org/dot.png' is not of this repository",
    "docs/broken.md:12: WARNING: raw HTML: '<b>'",
    "docs/broken.md:14: WARNING: the link '../src/small.py#L99' leads to no line of the file",
    "docs/broken.md:14: WARNING: the link 'images/dot.png' leads to a file that is not text",
    f"docs/broken.md:14: WARNING: the link '../../outside.md' {NOWHERE}",
    "docs/broken.md:16: WARNING: a directive, which GitHub does not know: 'note'",
    "docs/lost.md: WARNING: document isn't included in any toctree",
    "docs/index.md:5: WARNING: toctree contains reference to nonexisting document 'gone'",
    "src/small.py:4: WARNING: the public name small.bare has no docstring",
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A small site, built with the real configuration, and its warnings."""
    directory = tmp_path_factory.mktemp("site")
    for name, text in FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (directory / "docs/images").mkdir()
    shutil.copy(ROOT / "docs/images/dashboard-narrow.png", directory / "docs/images/dot.png")
    warnings = io.StringIO()
    with patch_docutils(str(ROOT / "docs")), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        places = directory / "docs", ROOT / "docs", directory / "out", directory / "made"
        options = {"confoverrides": {"site_modules": ["small"], "nitpicky": True}, "freshenv": True}
        app = Sphinx(*places, "html", status=None, warning=warnings, **options)
        app.build(force_all=True)
    text = re.sub(r"\x1b\[[0-9;]*m", "", warnings.getvalue()).replace(f"{directory}/", "")
    return directory / "out", text.splitlines()


def test_every_mistake_is_reported_with_its_file_and_line_and_nothing_else(small: tuple[Path, list[str]]) -> None:
    root, warnings = small
    assert [mistake for mistake in MISTAKES if not any(line.startswith(mistake) for line in warnings)] == []
    assert [line for line in warnings if not line.startswith(tuple(MISTAKES))] == []
    page = (root / "index.html").read_text()
    assert 'href="repository/src/small.py.html#L1">a file</a>' in page
    assert '{role}<code class="docutils literal notranslate"><span class="pre">text</span></code>, [^note].' in page
    assert '<a class="reference internal" href="repository/README.html">In short</a>' in page


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Path, str]]:
    """The real site, built without a warning, and its pages."""
    directory = tmp_path_factory.mktemp("real")
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-n", "-d", str(directory / "made")]
    ended = subprocess.run([*command, str(ROOT / "docs"), str(directory / "out")], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    return directory / "out", {path: path.read_text() for path in (directory / "out").rglob("*.html")}


def find_targets(text: str) -> Iterator[str]:
    for target in re.findall(r'\s(?:href|src)="([^"]*)"', text):
        if not re.match(r"(https?|mailto|data):", target):
            yield unquote(html.unescape(target))


@pytest.mark.timeout(900)  # The first of these builds the site.
@pytest.mark.slow
def test_every_link_of_the_real_site_leads_to_a_file_and_an_id_that_exist(real: tuple[Path, dict[Path, str]]) -> None:
    root, pages = real
    files = {str(path) for path in root.rglob("*")}
    ids = {
        str(path): {html.unescape(one) for one in re.findall(r'\sid="([^"]*)"', text)} for path, text in pages.items()
    }
    broken = []
    for path, text in pages.items():
        for target in set(find_targets(text)):
            file, _, anchor = target.partition("#")
            at = posixpath.normpath(path.parent / file.partition("?")[0]) if file else str(path)
            if at not in files or (anchor and anchor not in ids.get(at, ())):
                broken.append(f"{path.relative_to(root)}: {target}")
    assert len(files) > 200
    assert broken == []
    guides = [text for path, text in pages.items() if path.parent.name == "guides"]
    assert sum(text.count('<code class="name ') for text in guides) > 50, "guides link the names they use"


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_every_public_name_has_an_entry_in_the_reference(real: tuple[Path, dict[Path, str]]) -> None:
    root, pages = real
    public = runpy.run_path(str(ROOT / "tests/surface/test_public_names.py"))["PUBLIC"]
    listed = (root / "reference/index.html").read_text()
    missing = []
    for name, names in public.items():
        page = (root / f"reference/{name}.html").read_text()
        # A name that another module documents is in the table of those.
        elsewhere = set(re.findall(r'<td><p>(?:<a [^>]*>)?<code [^>]*><span class="pre">(\w+)</span>', page))
        missing += [
            f"{name}.{one}"
            for one in names
            if (f'id="{name}.{one}"' not in page and one not in elsewhere) or f">{one}</span>" not in listed
        ]
    assert missing == []
    page = pages[root / "reference/paceline.train.html"]
    assert not re.search(r'id="paceline\.train\.\S*\b_(?!_)', page), "private names are not shown"


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_the_real_site_needs_no_network(real: tuple[Path, dict[Path, str]]) -> None:
    root, pages = real
    loaded = re.compile(r'<(?:script|img|iframe)\b[^>]*\ssrc="(?:https?:)?//|<link\b[^>]*\shref="(?:https?:)?//')
    assert [path for path, text in pages.items() if loaded.search(text)] == []
    styles = {path: path.read_text() for path in root.rglob("*.css")}
    assert styles
    assert [path for path, text in styles.items() if re.search(r"""(url\(|@import)\s*["']?(https?:)?//""", text)] == []
