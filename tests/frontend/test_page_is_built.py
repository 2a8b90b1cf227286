"""The dashboard's page: its types hold, its unit tests pass, and what is committed is what its sources give."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRONTEND = ROOT / "frontend"
BUILT = ROOT / "src" / "paceline" / "_dashboard" / "page"
SOURCES = [FRONTEND / "index.html", *sorted(path for path in (FRONTEND / "src").rglob("*") if path.is_file())]
LOCK = FRONTEND / "package-lock.json"


@pytest.fixture(scope="module")
def npm():
    """Runs a script of `frontend/package.json`, and gives what it said."""
    key = subprocess.run(["cksum"], input=LOCK.read_bytes(), capture_output=True, check=True).stdout.split()[0].decode()
    if not (FRONTEND / "node_modules" / f".ready-{key}").exists():
        why = "what builds the page is not installed: `make page-tools`, where npm's registry can be reached"
        if os.environ.get("PACELINE_NEED_NODE"):
            pytest.fail(why)
        pytest.skip(why)
    tools = Path(sys.executable).parent
    path = os.pathsep.join([str(tools), os.environ.get("PATH", os.defpath)])

    def run(script, *arguments, cwd=FRONTEND):
        done = subprocess.run(
            [str(tools / "npm"), "run", "--silent", script, "--", *arguments],
            cwd=cwd,
            env={**os.environ, "PATH": path, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_types_of_the_page_are_those_of_the_structs_that_the_server_sends():
    generator = runpy.run_path(str(FRONTEND / "api_types.py"))
    assert (FRONTEND / "src" / "api.ts").read_text() == generator["render_types"](), "run `make frontend`"


def test_types_hold_and_unit_tests_pass(npm):
    npm("types")
    assert re.search(r"Tests +\d+ passed", npm("test"))


def test_the_committed_build_is_what_the_sources_give_wherever_they_lie(npm, tmp_path):
    elsewhere = tmp_path / "another folder"
    shutil.copytree(FRONTEND, elsewhere, ignore=shutil.ignore_patterns("node_modules"))
    (elsewhere / "node_modules").symlink_to(FRONTEND / "node_modules")
    npm("build", "--outDir", str(tmp_path / "page"), cwd=elsewhere)
    assert files_of(tmp_path / "page") == files_of(BUILT), "run `make frontend`, and commit what it builds"


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


def test_what_is_bundled_keeps_its_licence():
    script = (BUILT / "app.js").read_text()
    head = script[: script.index("*/")]
    for name in json.loads((FRONTEND / "package.json").read_text())["dependencies"]:
        assert re.search(rf"^{re.escape(name)}$", head, re.M), name
    assert head.count("Copyright (c)") == head.count("THE SOFTWARE IS PROVIDED") >= 1


def test_versions_are_exact_and_the_lockfile_names_no_registry():
    package = json.loads((FRONTEND / "package.json").read_text())
    for version in [*package["dependencies"].values(), *package["devDependencies"].values()]:
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    lock = json.loads(LOCK.read_text())
    installed = [each for path, each in lock["packages"].items() if path]
    assert all("integrity" in each and "resolved" not in each for each in installed)


def test_no_text_of_a_run_can_become_markup_style_or_script():
    markup = r"[iI]nnerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|createContextualFragment|DOMParser"
    script = r"setAttribute\(\s*[\"'`]style|\beval\(|new Function|javascript:"
    for path in SOURCES:
        assert not re.search(f"{markup}|{script}", path.read_text()), path
    for page in (FRONTEND / "index.html", BUILT / "index.html"):
        assert not re.search(r"<style|style=|\son\w+=|<script>", page.read_text()), page
