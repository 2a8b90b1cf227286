"""`paceline resume RUN`: run the script of a run again, which continues the run from its last checkpoint.

The command line comes from the run's journal. The command prints what it will run and refuses if that would not
continue this run; `--force` overrides uncertain cases. Then this process is replaced by the script.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from paceline._commands import cli_args, cli_output

if TYPE_CHECKING:
    from paceline._storage.run_location import RunLocation
    from paceline._view.model import Detail

FINE, REFUSED = 0, 2
MASK = "***"
_PLACE = "PACELINE_STORAGE_PATH"


class ResumeCommand(msgspec.Struct, frozen=True):
    run: str
    command: tuple[str, ...]
    working_directory: str
    variables: dict[str, str]
    since: str
    """What the run continues from, for display."""
    doubts: tuple[str, ...] = ()
    """Reasons why it may not continue this run; `--force` ignores them."""


def main(arguments: Sequence[str]) -> int:
    parser = _parser()
    asked = parser.parse_args(arguments)
    if asked.json and not asked.dry_run:
        parser.error("--json belongs to --dry-run: what the script prints is its own")
    plan = plan_resume(cli_args.locate_run(asked.run, or_search=True))
    refused = bool(plan.doubts) and not asked.force
    if asked.json:
        cli_output.print_json({"plan": plan, "refused": refused})
        return REFUSED if refused else FINE
    _print_plan(plan)
    if refused:
        cli_output.print_error(f"{plan.doubts[0]}\n\nhint: --force runs it all the same")
        return REFUSED
    if asked.dry_run:
        return FINE
    sys.stdout.flush()
    os.chdir(plan.working_directory)
    from paceline._core.settings import override_environment

    with override_environment(plan.variables):
        return _replace_process(plan.command)


def _replace_process(command: tuple[str, ...]) -> NoReturn:
    os.execv(command[0], command)


def _parser() -> cli_args.CommandParser:
    parser = cli_args.CommandParser(
        "resume",
        "Runs the script of a run again, with the same arguments, in the same directory: it continues from the newest "
        "checkpoint. It is refused where the run is complete or has a driver, and where there is no script to run "
        "again.",
        "paceline resume resnet --dry-run",
        "paceline resume resnet",
        codes="as of the script; 2 it cannot be resumed",
    )
    parser.add_run_argument()
    parser.add_argument("--dry-run", action="store_true", help="only say what would be run")
    parser.add_argument("--force", action="store_true", help="also if the script has changed since")
    parser.add_json_option()
    return parser


def _print_plan(plan: ResumeCommand) -> None:
    import shlex

    given = [f"{name}={shlex.quote(value)}" for name, value in plan.variables.items()]
    print(f"continues {cli_output.escape_line(plan.run)} from {cli_output.escape_line(plan.since)}", file=sys.stderr)
    print(f"  in    {cli_output.escape_line(plan.working_directory)}", file=sys.stderr)
    print(f"  runs  {cli_output.escape_line(' '.join([*given, shlex.join(plan.command)]))}", file=sys.stderr)


def plan_resume(home: RunLocation) -> ResumeCommand:
    """Return the command that continues a run or a search. Raises `ValueError` if there is none."""
    from paceline._view.liveness import Liveness

    detail, state, since = _read_search(home) if cli_args.is_search(home) else _read_run(home)
    if state == "complete":
        raise ValueError(
            f"{home.name} is complete: there is nothing to resume\n\nhint: give the script another name to train again"
        )
    if Liveness(home).is_held():
        raise ValueError(
            f"{home.name} is {state}: a driver has it\n\n"
            f"hint: `paceline logs {home.name} -f` follows it, `paceline stop {home.name}` ends it"
        )
    argv, directory, script = _original_invocation(home.name, detail)
    if not os.path.isdir(directory):
        raise ValueError(f"{home.name} was begun in {directory}, which is not here")
    python = str(detail.environment.get("executable") or "")
    if not os.access(python, os.X_OK):
        python = sys.executable
    variables = detail.environment.get("variables") or {}
    place = detail.run_config.get("storage_path")
    return ResumeCommand(
        home.name,
        _build_command(home, python, argv, directory),
        directory,
        # The script may rely on this variable for its storage path.
        {_PLACE: str(place)} if place and variables.get(_PLACE) == place else {},
        since,
        tuple(_find_doubts(home, detail, directory, script)),
    )


def _read_run(home: RunLocation) -> tuple[Detail, str, str]:
    """Return the run's details, its state, and what it continues from."""
    from paceline._view.run_reader import RunReader

    search = cli_args.find_parent_search(home)
    if search is not None:
        raise ValueError(
            f"{home.name} is a trial of the search {search.name}\n\n"
            f"hint: `paceline resume {search.address or search.uri}` continues that, and it with it"
        )
    reader = RunReader(home)
    reader.refresh()
    detail = reader.detail()
    latest = next((shown.name for shown in reversed(detail.checkpoints) if shown.kept), "the beginning")
    return detail, detail.summary.state, latest


def _read_search(home: RunLocation) -> tuple[Detail, str, str]:
    """Like `_read_run` for a search; the command line comes from its trials."""
    from paceline._view.listing import Listing
    from paceline._view.search_reader import build_search_detail

    listing = Listing(home.address or home.uri)
    listing.refresh()
    search = build_search_detail(listing, ".")
    for trial in search.trials:
        detail = listing.reader(trial.id).detail(trial.id)
        if detail.environment:
            ended = search.summary.num_reports
            return detail, search.summary.state, f"{ended} of {len(search.trials)} trials that have ended"
    raise ValueError(f"no trial of the search {home.name} tells what was run\n\nhint: run its script again")


def _original_invocation(name: str, detail: Detail) -> tuple[list[str], str, str]:
    """Return arguments, directory and script, as the driver recorded them."""
    environment, code = detail.environment, detail.code
    argv = [str(argument) for argument in environment.get("argv") or ()]
    if not environment or not argv:
        raise ValueError(
            f"the journal of run {name} does not tell what was run\n\n"
            "hint: run its script again with the same RunConfig(storage_path=..., name=...)"
        )
    first = os.path.basename(argv[0])
    if first in ("ipykernel_launcher.py", "colab_kernel_launcher.py", "ipython"):
        raise ValueError(f"run {name} was begun in a notebook\n\nhint: run its cells again, with the same name")
    if not argv[0] or argv[0] in ("-c", "-") or not code.get("script"):
        raise ValueError(
            f"run {name} was begun without a script: {' '.join(argv) or 'at a prompt'}\n\n"
            "hint: run the same again, with the same RunConfig(storage_path=..., name=...)"
        )
    if any(argument == MASK or argument.endswith(f"={MASK}") for argument in argv):
        raise ValueError(
            f"run {name} was begun with an argument that looks like a secret, which is not kept\n\n"
            f"hint: run it again yourself: {' '.join(argv)}"
        )
    return argv, str(environment.get("working_directory") or ""), str(code["script"])


def _build_command(home: RunLocation, python: str, argv: list[str], directory: str) -> tuple[str, ...]:
    if is_paceline_command(argv[0]) and argv[1:2] == ["run"]:
        return (python, "-m", "paceline", "run", *_add_name_and_path(home, argv[2:]))
    path = os.path.join(directory, argv[0])
    if not os.path.isfile(path):
        raise ValueError(f"the script of run {home.name} is not there any more: {path}")
    return (python, path, *argv[1:])


def is_paceline_command(program: str) -> bool:
    """Return whether a run was started by the `paceline` command."""
    return os.path.basename(program) == "paceline" or program.endswith(os.path.join("paceline", "__main__.py"))


def _add_name_and_path(home: RunLocation, arguments: list[str]) -> list[str]:
    """Add the name and storage path that `paceline run` may have chosen itself."""
    from paceline._commands.run import make_parser

    given = make_parser().parse_args(arguments)
    more = [] if given.name is not None else ["--name", home.name]
    more += [] if given.storage_path is not None else ["--storage-path", home.storage_path]
    return [*more, *arguments]


def _find_doubts(home: RunLocation, detail: Detail, directory: str, script: str) -> list[str]:
    import re

    found = []
    path = os.path.join(directory, script)
    kept = (detail.code.get("sources") or {}).get(script)
    if isinstance(kept, str) and _read_text(path) != kept:
        found.append(f"{path} is not what it was when run {home.name} was begun")
    argv = detail.environment.get("argv") or [""]
    if re.fullmatch(r"run-\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-[0-9a-f]{4}", home.name) and not is_paceline_command(
        str(argv[0])
    ):
        found.append(f"the name {home.name} was made up when the run began, so the script would begin another run")
    told: dict[str, Any] = detail.run_config
    if told.get("storage_path") and told.get("name"):
        place, name = str(told["storage_path"]), str(told["name"])
        was = place if cli_args.is_search(home) else os.path.join(place, name)
        if home.address is None and os.path.realpath(was) != os.path.realpath(home.uri):
            found.append(f"{home.uri} is a copy, or was moved: the script would go on with {was}")
    return found


def _read_text(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "backslashreplace")
    except OSError:
        return None
