"""`paceline doctor [PATH]`: what would keep runs from working here, each thing tried for real.

Every line is ok, warn or fail, with what to do about it. What is looked at lies in `diagnosis/`, a function for each
line or two; a look that fails in a way nobody thought of is a line that failed, not the end of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from paceline._commands import asking, telling

if TYPE_CHECKING:
    from paceline._commands.diagnosis.line import Line

FINE, BAD = 0, 1


def main(arguments: Sequence[str]) -> int:
    asked = _parser().parse_args(arguments)
    from paceline._commands.diagnosis import cluster, machine, packages, storage, workers
    from paceline._core import settings

    path = asked.path if asked.path is not None else settings.default_storage_path()
    looks: list[Callable[[], Iterator[Line]]] = [
        packages.looked_at,
        machine.looked_at,
        lambda: storage.looked_at(path),
        workers.looked_at,
        cluster.looked_at,
    ]
    lines = []
    about = ""
    for look in looks:
        for line in _safely(look):
            lines.append(line)
            if not asked.json:
                _print(line, heading=line.about if line.about != about else "")
                about = line.about
    bad = sum(line.status == "fail" for line in lines)
    if asked.json:
        telling.json({"path": path, "ok": not bad, "lines": lines})
    else:
        warnings = sum(line.status == "warn" for line in lines)
        print(f"\n{len(lines)} looked at: {bad} failed, {warnings} to be looked after")
    return BAD if bad else FINE


def _parser() -> asking.Parser:
    parser = asking.Parser(
        "doctor",
        "Looks at versions, devices, cores, memory, limits, the place where runs are kept (written to and read "
        "again), how workers start, and the cluster where one is configured.",
        "paceline doctor",
        "paceline doctor s3://bucket/runs --json",
        codes="0 nothing failed, 1 something did, 2 bad usage",
    )
    parser.add_argument("path", nargs="?", metavar="PATH", help="where runs are to be kept (the storage path)")
    parser.add_json()
    return parser


def _safely(look: Callable[[], Iterator[Line]]) -> Iterator[Line]:
    from paceline._commands.diagnosis.line import Line

    try:
        yield from look()
    except Exception as problem:  # noqa: BLE001  told as a line that failed
        yield Line("looks", look.__module__.rpartition(".")[2], "fail", f"{type(problem).__name__}: {problem}")


def _print(line: Line, heading: str) -> None:
    if heading:
        print(f"{heading}:")
    status = telling.state(line.status) + " " * (4 - len(line.status))
    text = telling.folded(f"{line.name}: {line.text}", 76, " " * 7).lstrip()
    print(f"  {status} {text}", flush=True)
    if line.hint:
        print(telling.folded(f"hint: {line.hint}", 76, " " * 7))
