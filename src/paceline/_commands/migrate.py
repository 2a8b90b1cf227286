"""`paceline migrate SCRIPT_OR_DIR...`: change the imports of scripts for Ray Train and Ray Tune, and list what differs.

A file is replaced by one rename, with its mode, encoding and line endings; one that cannot be parsed is named and left
alone. Notebooks are read as one script of all their code cells.
"""

from __future__ import annotations

import ast
import bisect
import difflib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from paceline._commands import cli_args, cli_output
from paceline._commands.migration import Finding
from paceline._core.lazy_imports import import_extra

FINE, FOUND, UNREADABLE = 0, 1, 2
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}
_MENTIONS = re.compile(rb"\b(ray|paceline)\b")
_CELL = "__paceline_cell__"
_CELL_LINE = re.compile(rf"^{_CELL}\(\d+\)\n", re.MULTILINE)
_MAGIC = re.compile(r"^([ \t]*)([%!?].*|.*\?)$", re.MULTILINE)
_HIDES = "pass  # paceline-magic: "
_HIDDEN = re.compile(rf"^([ \t]*){_HIDES}(.*)$", re.MULTILINE)


class MigratedFile(msgspec.Struct):
    """What became of one file."""

    path: str
    is_changed: bool = False
    problem: str = ""
    differences: list[Finding] = msgspec.field(default_factory=list)


def main(arguments: Sequence[str]) -> int:
    parser = cli_args.CommandParser(
        "migrate",
        """Changes the imports of scripts and notebooks from Ray Train, Tune, AIR and Data to Paceline, in place, and
        lists each name, argument or behaviour that differs. Ray Core (ray.init, ray.remote, ray.get, ...) stays: it
        works beside Paceline with the Ray engine, paceline[ray]. RLlib, Serve and Workflows are left alone.""",
        "paceline migrate train.py",
        "paceline migrate --diff src notebooks",
        codes="""0 fine, 1 with --check: something would change, is missing or differs, 2 bad usage, or a file that
        cannot be parsed""",
        runs=(),
    )
    add = parser.add_argument
    add("paths", nargs="+", metavar="SCRIPT_OR_DIR", help="files, and directories with .py and .ipynb files")
    add("--check", action="store_true", help="write nothing; exit with 1 if something would change or differs")
    add("--diff", action="store_true", help="write nothing; print what would change as a unified diff")
    add("--local", action="store_true", help="ray.init() and ray.shutdown() become Paceline's, which start no cluster")
    args = parser.parse_args(arguments)
    import_extra("libcst", "paceline migrate")
    is_dry = args.check or args.diff
    files = []
    for path in _list_files(args.paths):
        file, before, after = _migrate_file(path, is_local=args.local)
        files.append(file)
        if file.is_changed and not is_dry:
            _write_file(path, after)
        if not args.json:
            _print_file(file, is_dry)
            if args.diff and file.is_changed:
                _print_diff(path, before, after)
    if args.json:
        cli_output.print_json({"files": files, "is_written": not is_dry})
    else:
        _print_summary(files, is_dry)
    if any(file.problem for file in files):
        return UNREADABLE
    needs_work = any(file.is_changed or any(each.kind != "left" for each in file.differences) for file in files)
    return FOUND if args.check and needs_work else FINE


def _list_files(paths: Sequence[str]) -> Iterator[Path]:
    """The files to migrate, each once. A directory's hidden folders and environments are passed over."""
    seen = set()
    for path in map(Path, paths):
        found = [path]
        if path.is_dir():
            found = []
            for folder, inside, names in os.walk(path):
                inside[:] = sorted(
                    each
                    for each in inside
                    if not (each.startswith(".") or each in _SKIPPED or Path(folder, each, "pyvenv.cfg").exists())
                )
                found += [Path(folder, name) for name in sorted(names) if name.endswith((".py", ".ipynb"))]
        for file in found:
            if file.resolve() not in seen:
                seen.add(file.resolve())
                yield file


def _migrate_file(path: Path, *, is_local: bool) -> tuple[MigratedFile, bytes, bytes]:
    """Return what is to be said of a file, its content, and the new content."""
    import libcst

    file = MigratedFile(str(path))
    before = b""
    try:
        before = path.read_bytes()
        if not _MENTIONS.search(before):
            return file, before, before
        migrate = _migrate_notebook if path.suffix == ".ipynb" else _migrate_source
        after, file.differences = migrate(before, is_local)
    except OSError as error:
        file.problem = f"cannot be read: {error.strerror}"
    except libcst.ParserSyntaxError as error:
        file.problem = f"cannot be parsed, line {error.raw_line}: {error.message}"
    except (ValueError, RecursionError) as error:  # Not text, no JSON, or nested too deeply.
        file.problem = f"cannot be parsed: {str(error).partition(chr(10))[0]}"
    if file.problem:
        return file, before, before
    file.is_changed = after != before
    return file, before, after


def _migrate_source(before: bytes, is_local: bool) -> tuple[bytes, list[Finding]]:
    from paceline._commands.migration.differences import find_differences
    from paceline._commands.migration.rewrite import open_source, plan_rewrite, rewrite

    bom = before[:3] if before[:3] == b"\xef\xbb\xbf" else b""
    wrapper = open_source(before[len(bom) :])
    plan = plan_rewrite(wrapper, is_local=is_local)
    after = rewrite(wrapper, plan).bytes
    return bom + after, [*find_differences(wrapper, plan)]


def _migrate_notebook(before: bytes, is_local: bool) -> tuple[bytes, list[Finding]]:
    """Migrate all code cells as one module: names imported in one are used in others."""
    text = before.decode()
    notebook = json.loads(text)
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise ValueError("it has no cells")
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in cells]
    taken = [at for at, source in enumerate(sources) if not source.startswith("%%") or source.startswith("%%time")]
    whole = "".join(f"{_CELL}({at})\n{_hide_magics(sources[at])}\n" for at in taken)
    migrated, found = _migrate_source(whole.encode(), is_local)
    for at, new in zip(taken, _CELL_LINE.split(migrated.decode())[1:], strict=True):
        cell, source = cells[at], _HIDDEN.sub(r"\1\2", new[:-1])
        cell["source"] = source if isinstance(cell["source"], str) else source.splitlines(keepends=True)
    markers = [line for line, content in enumerate(whole.split("\n"), 1) if _CELL_LINE.match(content + "\n")]
    differences = []
    for each in found:
        at = bisect.bisect(markers, each.line) - 1
        differences.append(msgspec.structs.replace(each, cell=taken[at] + 1, line=each.line - markers[at]))
    if migrated == whole.encode():
        return before, differences
    indent = re.match(r"\{\n( +)", text)
    after = json.dumps(notebook, indent=len(indent[1]) if indent else None, ensure_ascii=text.isascii())
    return (after + "\n" * text.endswith("\n")).encode(), differences


def _hide_magics(source: str) -> str:
    """Make the lines of a cell that only IPython understands comments."""
    try:
        ast.parse(source)
    except SyntaxError:
        return _MAGIC.sub(rf"\1{_HIDES}\2", source)
    return source


def _write_file(path: Path, content: bytes) -> None:
    path = path.resolve()  # What a link points to is replaced, not the link.
    with cli_output.replace_file(path) as part:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(path, part)


def _print_file(file: MigratedFile, is_dry: bool) -> None:
    name = cli_output.escape_line(file.path)
    if file.problem:
        cli_output.print_error(f"{file.path}: {file.problem}; it is left alone")
    elif file.is_changed:
        print(f"{name}: {'would change' if is_dry else 'changed'}")
    for each in file.differences:
        place = f"{file.path}:{f'cell {each.cell}:' if each.cell else ''}{each.line}"
        print(cli_output.escape_line(f"{place}: {each.kind}: {each.name}: {each.text} ({each.page})"))


def _print_diff(path: Path, before: bytes, after: bytes) -> None:
    old, new = (each.decode(errors="backslashreplace").splitlines(keepends=True) for each in (before, after))
    name = str(path).lstrip("/")
    for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"):
        sys.stdout.write(cli_output.escape_text(line.rstrip("\r\n")) + "\n")


def _print_summary(files: Sequence[MigratedFile], is_dry: bool) -> None:
    num_changed = sum(file.is_changed for file in files)
    kinds = [each.kind for file in files for each in file.differences]
    words = "would change" if is_dry else "changed"
    print(
        f"{num_changed} of {len(files)} files {words}; {kinds.count('missing')} names or arguments are missing, "
        f"{kinds.count('differs')} differ, {kinds.count('left')} stay with Ray"
    )
    if "left" in kinds:
        print('Ray Core works beside Paceline with the Ray engine: pip install "paceline[ray]"')
