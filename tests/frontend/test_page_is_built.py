"""The dashboard's page: its types hold, its unit tests pass, and what is committed is what its sources give."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRONTEND = ROOT / "frontend"
BUILT = ROOT / "src" / "paceline" / "_dashboard" / "page"
SOURCES = sorted(path for path in (FRONTEND / "src").rglob("*") if path.suffix in (".ts", ".tsx", ".html", ".css"))

pytest.importorskip("playwright", reason="its Node runs the compiler")
pytest.importorskip("bokeh", reason="it carries the compiler")


def tool(what):
    return subprocess.run(
        [sys.executable, str(FRONTEND / "tool.py"), what], capture_output=True, text=True, timeout=100, cwd=ROOT
    )


def test_types_hold_and_the_committed_build_is_what_the_sources_give():
    done = tool("check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_unit_tests_pass():
    done = tool("test")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_is_small_and_asks_for_nothing_elsewhere():
    files = {path.name: path.read_text() for path in BUILT.iterdir()}
    assert set(files) == {"index.html", "app.css", "app.js"}
    assert sum(len(text.encode()) for text in files.values()) < 300_000
    for name, text in files.items():
        # The namespaces of SVG, MathML and XHTML are names, not addresses.
        found = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`]*", text)
        addresses = [each for each in found if "www.w3.org/" not in each]
        assert addresses == [], name
        assert "@import" not in text, name


MARKUP = re.compile(
    r"[iI]nnerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|createContextualFragment|DOMParser"
)


def test_no_text_of_a_run_can_become_markup():
    for path in SOURCES:
        assert not MARKUP.search(path.read_text()), path


def test_nothing_is_styled_or_scripted_inline():
    page = (FRONTEND / "src" / "index.html").read_text()
    assert not re.search(r"<style|style=|\son\w+=|<script>", page)
    for path in SOURCES:
        assert not re.search(r"setAttribute\(\s*[\"'`]style|\beval\(|new Function|javascript:", path.read_text()), path


def test_markup_is_found_where_there_is_some():
    assert MARKUP.search("element.innerHTML = name;")
    assert MARKUP.search("<div dangerouslySetInnerHTML={{ __html: name }} />")
