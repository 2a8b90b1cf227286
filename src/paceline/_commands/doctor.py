"""`paceline doctor [PATH]`: find what would keep runs from working here, by trying each thing.

Every line is ok, warn or fail, with a hint. The checks are in `diagnosis/`; a check that raises becomes a failed line
and the others still run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from paceline._commands import cli_args, cli_output

if TYPE_CHECKING:
    from paceline._commands.diagnosis import DiagnosisLine

FINE, BAD = 0, 1


def main(arguments: Sequence[str]) -> int:
    parser = cli_args.CommandParser(
        "doctor",
        "Checks versions, devices, cores, memory, limits, the host name, environment variables, the storage path (by "
        "writing and reading), how workers start, and the cluster if one is configured.",
        "paceline doctor",
        "paceline doctor s3://bucket/runs --json",
        codes="0 nothing failed, 1 something did, 2 bad usage",
        runs=(),
    )
    parser.add_argument("path", nargs="?", metavar="PATH", help="where runs are stored (the storage path)")
    args = parser.parse_args(arguments)
    from paceline._commands.diagnosis import cluster, machine, packages, storage, variables, workers
    from paceline._core import settings

    path = args.path if args.path is not None else settings.default_storage_path()
    checks: list[Callable[[], Iterator[DiagnosisLine]]] = [
        packages.check_packages,
        machine.check_machine,
        variables.check_variables,
        lambda: storage.check_storage(path),
        workers.check_workers,
        cluster.check_cluster,
    ]
    lines = []
    about = ""
    for check in checks:
        for line in _run_check(check):
            lines.append(line)
            if not args.json:
                _print_line(line, heading=line.about if line.about != about else "")
                about = line.about
    bad = sum(line.status == "fail" for line in lines)
    if args.json:
        cli_output.print_json({"path": path, "ok": not bad, "lines": lines})
    else:
        warnings = sum(line.status == "warn" for line in lines)
        print(f"\n{len(lines)} checks: {bad} failed, {warnings} warnings")
    return BAD if bad else FINE


def _run_check(check: Callable[[], Iterator[DiagnosisLine]]) -> Iterator[DiagnosisLine]:
    from paceline._commands.diagnosis import DiagnosisLine

    try:
        yield from check()
    except Exception as problem:  # noqa: BLE001
        module = check.__module__.rpartition(".")[2]
        yield DiagnosisLine("checks", module, "fail", f"{type(problem).__name__}: {problem}")


def _print_line(line: DiagnosisLine, heading: str) -> None:
    if heading:
        print(f"{heading}:")
    status = cli_output.colour_state(line.status) + " " * (4 - len(line.status))
    text = cli_output.wrap_text(f"{line.name}: {line.text}", 76, " " * 7).lstrip()
    print(f"  {status} {text}", flush=True)
    if line.hint:
        print(cli_output.wrap_text(f"hint: {line.hint}", 76, " " * 7))
