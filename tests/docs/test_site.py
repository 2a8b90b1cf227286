"""The documentation's site: what becomes of each kind of Markdown, which mistakes are told, and the real one.

Two small sites are built here, one without and one full of mistakes, and the real one in a process of its own.
"""

import html
import importlib.util
import io
import json
import posixpath
import re
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
pages = ["index", "guides/first"]

[[section]]
title = "Reference"
pages = ["reference/index"]

[[section]]
title = "Project"
pages = [{ page = "../README", title = "In short" }, "../examples/try.ipynb"]
"""

NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "source": ["# Try it\n", "\n", "[Docs](../docs/index.md)"]},
        {
            "cell_type": "code",
            "source": ["print(6 * 7)"],
            "outputs": [{"output_type": "stream", "name": "stdout", "text": ["42\n"]}],
        },
    ]
}

MODULE = '''"""A module of a few names."""

__all__ = ["Engine", "Gear", "Wheel", "run_it", "stop"]


class Wheel:
    """It rolls."""

    def roll(self) -> None:
        """Roll."""


class _Base:
    def wait(self) -> None:
        """Inherited from what is not public."""


class Engine(_Base):
    """Turns. `run_it` starts one.

        engine = Engine(4)
        engine.turn()
    """

    def __init__(self, size: int = 1, *, _seam: object = None) -> None:
        self.size = size

    def turn(self, times: int = 1) -> "Engine":
        """Turn it."""
        return self

    def size_now(self) -> int:
        return self.size

    def _hidden(self) -> None:
        """Not shown."""


def run_it(engine: Engine, /, *others: Engine, name: str = "it", **options: object) -> None:
    """Run engines."""


class Gear(Wheel):
    """It rolls in its own way."""

    def roll(self) -> None:
        return None


stop = run_it
'''

INDEX = """# The title

Text with *emphasis*, **strength**, `code`, ~~less~~ and a
break\\
here. [A page](guides/first.md), [a part of it](guides/first.md#what-is-it), [here](#the-title),
[outside](https://example.org/), [a file](../examples/run.py), [its line](../examples/run.py#L2),
[the readme](../README.md), `Engine.turn`, `run_it()`.

![A picture](images/dot.png)

<!-- not run: a comment -->

```python
answer = 42
```

```
$ make docs
done
```

    indented

| left | right |
| :--- | ---: |
| `a` | 1 |

| | |
| --- | --- |
| no | head |

1. one
   - nested
2. two

> quoted

---

## What is `it`?

## What is it

Not MyST's: {role}`text`, [^note].

% no comment
"""

RUN = '''import small  # "not a text"

@small.wrapped
def f(x: int) -> str:
    """Two
    lines & <tags>."""
    return rf'{x!r} "quoted"' + "it's \\" escaped" if x < 0x1F else b""
'''

GOOD = {
    "docs/contents.toml": CONTENTS,
    "docs/index.md": INDEX,
    "docs/guides/first.md": "# One\n\n## What is it?\n\n[Up](../index.md#what-is-it-1)\n",
    "docs/reference/index.md": "# Reference\n",
    "README.md": "# Read me\n\n![A picture](docs/images/dot.png) [docs](docs/index.md)\n",
    "examples/try.ipynb": json.dumps(NOTEBOOK),
    "examples/run.py": RUN,
    "src/small.py": MODULE,
}

BROKEN = {
    "docs/contents.toml": CONTENTS.replace('"guides/first"', '"broken", "gone", "broken", "untitled"'),
    "docs/index.md": "# Index\n",
    "docs/reference/index.md": "# Reference\n",
    "docs/lost.md": "# Nobody lists me\n",
    "docs/untitled.md": "No title.\n",
    "docs/broken.md": """# Broken

[no page](nowhere.md)
[no file](../examples/nothing.py)
[no anchor](index.md#nothing) and [none here](#nothing).

- in a list, on
  its second line [no page](deep/nowhere.md)

| a |
| --- |
| [no page](table.md) |

![no picture](images/none.png)

Some <b>raw</b> HTML.

<div>
a block
</div>

```nolanguage
text
```

[no line](../README.md#L9) [outside](../../outside.md) ![afar](https://example.org/dot.png)

[no such line](../src/small.py#L99) [a folder](../src) [not text](images/dot.png) [no suffix](index)

[the name of a page](#lost)

```{note}
Only MyST knows this.
```
""",
    "README.md": "# Read me\n",
    "../outside.md": "# It is there, and is not of the repository\n",
    "src/small.py": '"""Small."""\n\n\ndef bare():\n    return 1\n',
}

DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000001e221bc330000"
    "000049454e44ae426082"
)


def build(directory: Path, files: dict[str, str]) -> str:
    """Build a small site with the real configuration, and return its warnings."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (directory / "docs/images").mkdir()
    (directory / "docs/images/dot.png").write_bytes(DOT)
    warnings = io.StringIO()
    with patch_docutils(str(ROOT / "docs")), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        app = Sphinx(
            directory / "docs",
            ROOT / "docs",
            directory / "out",
            directory / "made",
            "html",
            confoverrides={
                "site_modules": ["small"],
                "nitpicky": True,
                # Of the second site in a process: what the first has told docutils is told again.
                "suppress_warnings": ["app", "myst.strikethrough"],
            },
            status=None,
            warning=warnings,
            freshenv=True,
        )
        app.build(force_all=True)
    return re.sub(r"\x1b\[[0-9;]*m", "", warnings.getvalue()).replace(f"{directory}/", "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    assert build(directory, GOOD) == ""
    return directory / "out"


@pytest.fixture(scope="module")
def index(site: Path) -> str:
    text = (site / "index.html").read_text()
    return text[text.index("<article") : text.index("</article>")]


@pytest.mark.parametrize(
    "shown",
    [
        "<em>emphasis</em>",
        "<strong>strength</strong>",
        '<code class="docutils literal notranslate"><span class="pre">code</span></code>',
        "<s>less</s>",
        "break<br />\nhere.",
        '<section id="the-title">',
        '<section id="what-is-it">',
        'id="what-is-it-1"',
        'href="guides/first.html"><span class="std std-doc">A page</span></a>',
        'href="guides/first.html#what-is-it"><span class="std std-ref">a part of it</span></a>',
        'href="#the-title"><span class="std std-ref">here</span></a>',
        'href="https://example.org/">outside</a>',
        'href="repository/examples/run.py.html">a file</a>',
        'href="repository/examples/run.py.html#L2">its line</a>',
        'href="repository/README.html"><span class="std std-doc">the readme</span></a>',
        '<img alt="A picture" src="_images/dot.png" />',
        '<div class="highlight-python notranslate"><div class="highlight"><pre><span></span><span class="n">answer',
        '<div class="highlight-console notranslate"',
        '<div class="highlight-none notranslate"><div class="highlight"><pre><span></span>indented\n',
        '<th class="head text-right"><p>right</p></th>',
        '<td class="text-right"><p>1</p></td>',
        "<blockquote>",
        '<hr class="docutils" />',
        '{role}<code class="docutils literal notranslate"><span class="pre">text</span></code>, [^note].',
        "<p>% no comment</p>",
    ],
)
def test_each_kind_of_markdown_has_its_html(index: str, shown: str) -> None:
    assert shown in index


def test_comments_are_dropped_and_a_table_without_a_head_has_none(index: str) -> None:
    assert "not run" not in index
    assert index.count("<thead>") == 1
    assert index.count("<table") == 2


def test_lists_nest(index: str) -> None:
    assert re.search(r"<ol[^>]*>\s*<li><p>one</p>\s*<ul[^>]*>\s*<li><p>nested</p>", index)


def test_public_names_in_the_text_lead_to_the_reference(index: str) -> None:
    assert 'href="reference/small.html#small.Engine.turn"><code class="name' in index
    assert 'href="reference/small.html#small.run_it"><code class="name' in index


def test_the_reference_has_signatures_docstrings_and_where_a_name_is_defined(site: Path) -> None:
    source = (site / "reference/small.html").read_text()
    page = " ".join(html.unescape(re.sub(r"<[^>]+>", "", source)).split())
    assert "class Engine(size: int = 1)" in page
    assert "run_it(engine: Engine, /, *others: Engine, name: str = 'it', **options: object) → None" in page
    assert "turn(times: int = 1) → Engine" in page
    assert "Inherited from what is not public." in page
    assert "Source: src/small.py" in page
    assert "_seam" not in page
    assert "_hidden" not in page
    assert "stop The same as small.run_it." in page
    assert "From Wheel: roll." in page, "an override that says nothing of its own"
    assert 'id="small.Engine.size_now"' in source
    assert 'href="small.html#small.Engine"><span class="pre">Engine</span></a>' in source, (
        "a type that is a public name"
    )
    assert '<span class="n">engine</span><span class="o">.</span><span class="n">turn</span>' in source, "code is code"


def test_a_file_is_shown_with_numbered_lines(site: Path) -> None:
    page = (site / "repository/examples/run.py.html").read_text()
    assert '<span class="line" id="L2">' in page
    shown = page[page.index('<div class="highlight numbered"><pre>') : page.index("</pre>")]
    assert html.unescape(re.sub(r"<[^>]+>", "", shown)) == RUN
    assert all(line.count("<span") == line.count("</span>") for line in shown.splitlines()), "colours end with a line"
    assert '<span class="k">def</span>' in shown
    assert 'href="../../index.html"' in page


def test_a_notebook_is_a_page_with_what_its_cells_printed(site: Path) -> None:
    page = (site / "repository/examples/try.html").read_text()
    assert '<section id="try-it">' in page
    assert 'href="../../index.html"><span class="std std-doc">Docs</span></a>' in page
    assert '<span class="nb">print</span>' in page
    assert re.search(r'highlight-text notranslate"><div class="highlight"><pre><span></span>42\n', page)


def test_the_contents_call_a_page_by_its_title_or_as_they_are_told(site: Path) -> None:
    page = (site / "guides/first.html").read_text()
    assert '<a class="reference internal" href="../index.html">The title</a>' in page
    assert '<a class="reference internal" href="../repository/README.html">In short</a>' in page
    assert '<a class="reference internal" href="../reference/small.html">small</a>' in page, "below the reference"


def test_pages_lead_to_the_ones_before_and_after(site: Path) -> None:
    page = (site / "guides/first.html").read_text()
    assert '<a class="prev-page" href="../index.html">' in page
    assert '<a class="next-page" href="../reference/index.html">' in page


def test_code_can_be_copied_without_its_prompts(site: Path) -> None:
    script = (site / "_static/copybutton.js").read_text()
    assert "'.linenos, .gp, .go'" in script
    assert "_static/copybutton.js" in (site / "index.html").read_text()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return build(tmp_path_factory.mktemp("broken"), BROKEN).splitlines()


NOWHERE = "leads to no page and no file of the repository"

MISTAKES = [
    f"docs/broken.md:3: WARNING: the link 'nowhere.md' {NOWHERE}",
    f"docs/broken.md:3: WARNING: the link '../examples/nothing.py' {NOWHERE}",
    "docs/broken.md:3: WARNING: local id not found in doc 'index': 'nothing'",
    "docs/broken.md:3: WARNING: local id not found in doc 'broken': 'nothing'",
    f"docs/broken.md:7: WARNING: the link 'deep/nowhere.md' {NOWHERE}",
    f"docs/broken.md:12: WARNING: the link 'table.md' {NOWHERE}",
    "docs/broken.md:14: WARNING: image file not readable: images/none.png",
    "docs/broken.md:16: WARNING: raw HTML: '<b>'",
    "docs/broken.md:16: WARNING: raw HTML: '</b>'",
    "docs/broken.md:18: WARNING: raw HTML: '<div>'",
    "docs/broken.md:22: WARNING: Pygments lexer name 'nolanguage' is not known",
    "docs/broken.md:26: WARNING: local id not found in doc 'repository/README': 'L9'",
    f"docs/broken.md:26: WARNING: the link '../../outside.md' {NOWHERE}",
    "docs/broken.md:26: WARNING: the image 'https://example.org/dot.png' is not of this repository",
    "docs/broken.md:28: WARNING: the link '../src/small.py#L99' leads to no line of the file",
    f"docs/broken.md:28: WARNING: the link '../src' {NOWHERE}",
    "docs/broken.md:28: WARNING: the link 'images/dot.png' leads to a file that is not text",
    f"docs/broken.md:28: WARNING: the link 'index' {NOWHERE}",
    "docs/broken.md:30: WARNING: local id not found in doc 'broken': 'lost'",
    "docs/broken.md:32: WARNING: a directive, which GitHub does not know: 'note'",
    "docs/lost.md: WARNING: document isn't included in any toctree",
    "docs/index.md:3: WARNING: toctree contains reference to document 'untitled' that doesn't have a title",
    "docs/index.md:3: WARNING: toctree contains reference to nonexisting document 'gone'",
    "docs/index.md:3: WARNING: duplicated entry found in toctree: broken",
    "docs/index.md:21: WARNING: toctree contains reference to nonexisting document 'repository/examples/try'",
    "src/small.py:4: WARNING: the public name small.bare has no docstring",
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_its_file_and_line(told: list[str], mistake: str) -> None:
    assert [line for line in told if line.startswith(mistake)], "\n".join(told)


def test_nothing_else_is_told(told: list[str]) -> None:
    assert [line for line in told if not line.startswith(tuple(MISTAKES))] == []


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("real")
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-n", "-d", str(directory / "made")]
    ended = subprocess.run([*command, str(ROOT / "docs"), str(directory / "out")], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    return directory / "out"


@pytest.fixture(scope="module")
def real_pages(real: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in real.rglob("*.html")}


def _targets(text: str) -> Iterator[str]:
    for found in re.findall(r'\s(?:href|src)="([^"]*)"', text):
        if not re.match(r"(https?|mailto|data):", found):
            yield unquote(html.unescape(found))


@pytest.mark.timeout(300)  # The first of these builds the site.
def test_every_link_of_the_real_site_leads_to_a_file_and_an_id_that_exist(
    real: Path, real_pages: dict[Path, str]
) -> None:
    files = {str(path) for path in real.rglob("*")}
    ids = {
        str(path): {html.unescape(one) for one in re.findall(r'\sid="([^"]*)"', text)}
        for path, text in real_pages.items()
    }
    broken = []
    for path, text in real_pages.items():
        for target in set(_targets(text)):
            file, _, anchor = target.partition("#")
            at = posixpath.normpath(path.parent / file.partition("?")[0]) if file else str(path)
            if at not in files or (anchor and anchor not in ids.get(at, ())):
                broken.append(f"{path.relative_to(real)}: {target}")
    assert len(files) > 200
    assert broken == []


@pytest.mark.timeout(300)
def test_every_public_name_has_an_entry_in_the_reference(real: Path) -> None:
    spec = importlib.util.spec_from_file_location("public_names", ROOT / "tests/surface/test_public_names.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    missing = []
    for name, names in module.PUBLIC.items():
        page = (real / f"reference/{name}.html").read_text()
        listed = (real / "reference/index.html").read_text()
        # A name that another module tells of is in the table of those.
        elsewhere = set(re.findall(r'<td><p>(?:<a [^>]*>)?<code [^>]*><span class="pre">(\w+)</span>', page))
        missing += [
            f"{name}.{one}"
            for one in names
            if (f'id="{name}.{one}"' not in page and one not in elsewhere) or f">{one}</span>" not in listed
        ]
    assert missing == []


@pytest.mark.timeout(300)
def test_the_guides_lead_to_the_reference_by_the_names_they_use(real_pages: dict[Path, str]) -> None:
    guides = [text for path, text in real_pages.items() if path.parent.name == "guides"]
    assert sum(text.count('<code class="name ') for text in guides) > 50


@pytest.mark.timeout(300)
def test_the_real_site_needs_no_network(real: Path, real_pages: dict[Path, str]) -> None:
    loaded = re.compile(r'<(?:script|img|iframe)\b[^>]*\ssrc="(?:https?:)?//|<link\b[^>]*\shref="(?:https?:)?//')
    assert [path for path, text in real_pages.items() if loaded.search(text)] == []
    styles = {path: path.read_text() for path in real.rglob("*.css")}
    assert styles
    assert [path for path, text in styles.items() if re.search(r"""(url\(|@import)\s*["']?(https?:)?//""", text)] == []
