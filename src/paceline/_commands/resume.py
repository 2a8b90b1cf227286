"""`paceline resume RUN`: run the script of a run again, which continues the run from its last checkpoint.

The command line comes from the run's journal. The command prints what it will run and refuses if that would not
continue this run; `--force` overrides uncertain cases. Then this process is replaced by the script.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from paceline._commands import cli_args, cli_output, searches

if TYPE_CHECKING:
    from paceline._storage.run_location import RunLocation
    from paceline._view.model import RunSnapshot

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
    parser = cli_args.CommandParser(
        "resume",
        "Runs the script of a run again, with the same arguments, in the same directory: it continues from the newest "
        "checkpoint. Refuses if the run has finished or has a driver, or if there is no script to run "
        "again.",
        "paceline resume resnet --dry-run",
        "paceline resume resnet",
        codes="as of the script; 2 it cannot be resumed",
    )
    parser.add_argument("--dry-run", action="store_true", help="only print the command")
    parser.add_argument("--force", action="store_true", help="even if the script has changed since")
    args = parser.parse_args(arguments)
    if args.json and not args.dry_run:
        parser.error("--json requires --dry-run")
    plan = plan_resume(cli_args.locate_run(args.run, or_search=True))
    refused = bool(plan.doubts) and not args.force
    if args.json:
        cli_output.print_json({"plan": plan, "refused": refused})
        return REFUSED if refused else FINE
    _print_plan(plan)
    if refused:
        cli_output.print_error(f"{plan.doubts[0]}\n\nhint: --force runs it anyway")
        return REFUSED
    if args.dry_run:
        return FINE
    sys.stdout.flush()
    os.chdir(plan.working_directory)
    from paceline._core.settings import override_environment

    with override_environment(plan.variables):
        return os.execv(plan.command[0], plan.command)


def _print_plan(plan: ResumeCommand) -> None:
    import shlex

    command = " ".join([*(f"{k}={shlex.quote(v)}" for k, v in plan.variables.items()), shlex.join(plan.command)])
    for line in (f"continues {plan.run} from {plan.since}", f"  in    {plan.working_directory}", f"  runs  {command}"):
        print(cli_output.escape_line(line), file=sys.stderr)


def plan_resume(location: RunLocation) -> ResumeCommand:
    """Return the command that continues a run or a search. Raises `ValueError` if there is none."""
    from paceline._view.run_reader import Liveness

    detail, state, since = _read_search(location) if cli_args.is_search(location) else _read_run(location)
    if state == "finished":
        raise ValueError(
            f"{location.name} has finished, nothing to resume\n\nhint: give the script another name to train again"
        )
    if Liveness(location).is_held():
        raise ValueError(
            f"{location.name} is {state}: a driver holds it\n\n"
            f"hint: `paceline logs {location.name} -f` follows it, `paceline stop {location.name}` ends it"
        )
    argv, directory, script = _original_invocation(location.name, detail)
    if not os.path.isdir(directory):
        raise ValueError(f"{location.name} was started in {directory}, which does not exist here")
    python = str(detail.environment.get("executable") or "")
    if not os.access(python, os.X_OK):
        python = sys.executable
    variables = detail.environment.get("variables") or {}
    place = detail.run_config.get("storage_path")
    return ResumeCommand(
        location.name,
        _build_command(location, python, argv, directory),
        directory,
        # The script may rely on this variable for its storage path.
        {_PLACE: str(place)} if place and variables.get(_PLACE) == place else {},
        since,
        tuple(_find_doubts(location, detail, directory, script)),
    )


def _read_run(location: RunLocation) -> tuple[RunSnapshot, str, str]:
    """Return the run's details, its state, and what it continues from."""
    search = cli_args.find_parent_search(location)
    if search is not None:
        raise ValueError(
            f"{location.name} is a trial of the search {search.name}\n\n"
            f"hint: `paceline resume {search.address or search.uri}` continues the search with all its trials"
        )
    detail = cli_args.open_reader(location).snapshot()
    latest = next((checkpoint.name for checkpoint in reversed(detail.checkpoints) if checkpoint.kept), "the beginning")
    return detail, detail.summary.state, latest


def _read_search(location: RunLocation) -> tuple[RunSnapshot, str, str]:
    """Like `_read_run` for a search; the command line comes from its trials."""
    listing = searches.read_listing(location.address or location.uri)
    search = listing.search_detail(".")
    for trial in search.trials:
        detail = listing.reader(trial.id).snapshot(trial.id)
        if detail.environment:
            num_ended = search.summary.num_reports
            return detail, search.summary.state, f"{num_ended} of {len(search.trials)} ended trials"
    raise ValueError(f"no trial of the search {location.name} recorded its command\n\nhint: run its script again")


def _original_invocation(name: str, detail: RunSnapshot) -> tuple[list[str], str, str]:
    """Return arguments, directory and script, as the driver recorded them."""
    environment, code = detail.environment, detail.code
    argv = [str(argument) for argument in environment.get("argv") or ()]
    if not environment or not argv:
        raise ValueError(
            f"the journal of run {name} does not record its command\n\n"
            "hint: run its script again with the same RunConfig(storage_path=..., name=...)"
        )
    first = os.path.basename(argv[0])
    if first in ("ipykernel_launcher.py", "colab_kernel_launcher.py", "ipython"):
        raise ValueError(f"run {name} was started in a notebook\n\nhint: run its cells again, with the same name")
    if not argv[0] or argv[0] in ("-c", "-") or not code.get("script"):
        raise ValueError(
            f"run {name} was started without a script: {' '.join(argv) or 'at a prompt'}\n\n"
            "hint: run the same again, with the same RunConfig(storage_path=..., name=...)"
        )
    if any(MASK in argument for argument in argv):
        raise ValueError(
            f"run {name} was started with an argument that looks like a secret, which is not recorded\n\n"
            f"hint: run it again yourself: {' '.join(argv)}"
        )
    return argv, str(environment.get("working_directory") or ""), str(code["script"])


def _build_command(location: RunLocation, python: str, argv: list[str], directory: str) -> tuple[str, ...]:
    if is_paceline_command(argv[0]) and argv[1:2] == ["run"]:
        return (python, "-m", "paceline", "run", *_add_name_and_path(location, argv[2:]))
    path = os.path.join(directory, argv[0])
    if not os.path.isfile(path):
        raise ValueError(f"the script of run {location.name} no longer exists: {path}")
    return (python, path, *argv[1:])


def is_paceline_command(program: str) -> bool:
    """Return whether a run was started by the `paceline` command."""
    return os.path.basename(program) == "paceline" or program.endswith(os.path.join("paceline", "__main__.py"))


def _add_name_and_path(location: RunLocation, arguments: list[str]) -> list[str]:
    """Add the name and storage path that `paceline run` may have chosen itself."""
    from paceline._commands.run import make_parser

    parsed = make_parser().parse_args(arguments)
    more = [] if parsed.name is not None else ["--name", location.name]
    more += [] if parsed.storage_path is not None else ["--storage-path", location.storage_path]
    return [*more, *arguments]


def _find_doubts(location: RunLocation, detail: RunSnapshot, directory: str, script: str) -> list[str]:
    import re

    from paceline._core.masking import mask_source

    doubts = []
    path = os.path.join(directory, script)
    source = (detail.code.get("sources") or {}).get(script)
    text = _read_text(path)
    if isinstance(source, str) and (text is None or source not in (text, mask_source(text))):
        doubts.append(f"{path} has changed since run {location.name} started")
    program = str((detail.environment.get("argv") or [""])[0])
    is_generated = re.fullmatch(r"run-\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d-[0-9a-f]{4}", location.name)
    if is_generated and not is_paceline_command(program):
        doubts.append(f"the name {location.name} was generated, so the script would start another run")
    config = detail.run_config
    if config.get("if_exists") in ("fail", "new"):
        doubts.append(f"the script has RunConfig(if_exists={config['if_exists']!r}), so it does not continue this run")
    if config.get("storage_path") and config.get("name"):
        storage_path, name = str(config["storage_path"]), str(config["name"])
        original = storage_path if cli_args.is_search(location) else os.path.join(storage_path, name)
        if location.address is None and os.path.realpath(original) != os.path.realpath(location.uri):
            doubts.append(f"{location.uri} is a copy, or was moved: the script would continue {original}")
    return doubts


def _read_text(path: str) -> str | None:
    try:
        return Path(path).read_bytes().decode("utf-8", "backslashreplace")
    except OSError:
        return None
