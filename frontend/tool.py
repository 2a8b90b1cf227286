"""Checks, tests and builds the page of the dashboard: `python frontend/tool.py build|check|test`.

It needs the project's test tools and no Node.js of one's own: `playwright` carries one, and `bokeh` a TypeScript
compiler. What it builds is committed, so that nobody who installs or runs Paceline needs any of this.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILT = HERE.parent / "src" / "paceline" / "_dashboard" / "page"
MOST_BYTES = 300_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["build", "check", "test"], help="check: also that what is committed is built")
    asked = parser.parse_args()
    if asked.what == "test":
        return tested()
    made = built()
    if made is None:
        return 1
    size = sum(map(len, made.values()))
    if size > MOST_BYTES:
        print(f"the page has {size} bytes; it may have {MOST_BYTES}")
        return 1
    if asked.what == "build":
        BUILT.mkdir(parents=True, exist_ok=True)
        for name, data in made.items():
            (BUILT / name).write_bytes(data)
        print(f"{size} bytes in {BUILT.relative_to(HERE.parent)}")
        return 0
    stale = [name for name, data in made.items() if _read(BUILT / name) != data]
    if stale:
        print(f"{', '.join(stale)} in {BUILT} is not what the sources give: run `make frontend` and commit it")
    return 1 if stale else 0


def built() -> dict[str, bytes] | None:
    """The files of the page by name; None where the types do not hold."""
    bundle = _compiled(HERE / "src" / "main.tsx")
    if bundle is None:
        return None
    script = f'(function () {{\n{_vendored()}{bundle}load("src/main");\n}})();\n'
    return {
        "index.html": (HERE / "src" / "index.html").read_bytes(),
        "app.css": _dense("".join(path.read_text() for path in sorted((HERE / "src" / "css").glob("*.css")))).encode(),
        "app.js": _minified(script),
    }


def tested() -> int:
    """Run the unit tests, in Node."""
    tests = sorted((HERE / "tests").glob("*.test.ts*"))
    bundle = _compiled(*tests)
    if bundle is None:
        return 1
    loads = "".join(f'load("tests/{test.name.rpartition(".")[0]}");\n' for test in tests)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tests.cjs"
        file.write_text(f"const elsewhere = require;\n{_vendored()}{bundle}{loads}")
        return subprocess.run([_node(), "--test", "--test-reporter=spec", str(file)]).returncode


def _compiled(*entries: Path) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bundle.js"
        line = [_node(), HERE / "tools" / "compile.mjs", _typescript(), out, *entries]
        if subprocess.run(list(map(str, line))).returncode:
            return None
        return out.read_text()


def _minified(script: str) -> bytes:
    line = [_node(), str(HERE / "tools" / "minify.mjs"), _typescript()]
    return subprocess.run(line, input=script.encode(), stdout=subprocess.PIPE, check=True).stdout


def _dense(style: str) -> str:
    """A style without comments and most of its white space."""
    style = re.sub(r"/\*.*?\*/", "", style, flags=re.S)
    style = re.sub(r"\s*([{};])\s*|(?<=[:,])[ \t]+", lambda found: found[1] or "", style)
    return style.replace("}", "}\n").replace(";}", "}").lstrip()


def _vendored() -> str:
    return "".join((HERE / "vendor" / name).read_text() for name in ("loader.js", "preact.js"))


def _node() -> str:
    return str(_package("playwright") / "driver" / "node")


def _typescript() -> str:
    return str(_package("bokeh") / "server" / "static")


def _package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        sys.exit(f"the package {name} is not installed: run this with .venv/bin/python, after `make test`")
    return Path(found.origin).parent


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
