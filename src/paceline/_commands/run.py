"""`paceline run --num-workers 4 script.py ...`: run any torchrun script with logs, restarts and failure reports."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._commands import cli_args, cli_output

if TYPE_CHECKING:
    from paceline._storage.run_location import RunLocation

DONE, FAILED, NOT_RUN, PREEMPTED, INTERRUPTED = 0, 1, 2, 75, 130


def main(arguments: Sequence[str]) -> int:
    args = make_parser().parse_args(arguments)
    from paceline._engine.local.launchers import prewarm
    from paceline.train.driver.script import ScriptConfig

    prewarm(*ScriptConfig.preload)
    with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
        code, location = _fit_trainer(args)
    if args.json and location is not None:
        cli_output.print_json(cli_args.open_reader(location).summary())
    return code


def _fit_trainer(args: argparse.Namespace) -> tuple[int, RunLocation | None]:
    """Return the exit code, and the location of the run once it is known."""
    from paceline._core.errors import PacelineError, PreemptionError, TrainingFailedError

    location: RunLocation | None = None
    try:
        trainer = _make_trainer(args)
        location = trainer.run_config.location
        trainer.fit()
    except PreemptionError:
        return PREEMPTED, location  # Already printed, with how to resume.
    except TrainingFailedError as error:
        return cli_output.print_message(str(error), FAILED), location
    except (PacelineError, OSError, ImportError, ValueError) as error:
        return cli_output.print_message(str(error), NOT_RUN), None
    except KeyboardInterrupt:
        return INTERRUPTED, location
    return DONE, location


def make_parser() -> argparse.ArgumentParser:
    parser = cli_args.CommandParser(
        "run",
        "Runs a script in many processes, with the environment of torchrun: RANK, WORLD_SIZE, LOCAL_RANK, "
        "MASTER_ADDR, MASTER_PORT and so on. The script is not changed.",
        "paceline run --num-workers 4 --max-failures 3 train.py --lr 0.1",
        "paceline run -n 2:8 --name resnet -m my.trainer",
        codes="0 finished, 1 failed, 75 preempted, 130 stopped, 2 it cannot be run",
        runs=(),
        json="when it ends, print its outcome as JSON, and everything else to standard error",
    )
    add = parser.add_argument
    add("-n", "--num-workers", "--nproc-per-node", "--nproc_per_node", type=_parse_num_workers, default=1, metavar="N",
        help="how many processes; 2:4 means two to four, as many as fit (1)")  # fmt: skip
    add("--use-gpu", action="store_true", help="a GPU for each")
    add("--name", help="of the run (a new one)")
    add("--if-exists", choices=("resume", "fail", "new"), help="what to do about a run of this name (resume it)")
    add("--storage-path", metavar="DIRECTORY", help="where the run and its logs are stored (~/paceline_results)")
    add("--max-failures", "--max-restarts", "--max_restarts", type=int, default=0, metavar="N",
        help="how often to restart all processes when one fails (0; -1 always)")  # fmt: skip
    about = "without progress until a hang is reported (30, or as reports suggest)"
    add("--hang-timeout", type=float, metavar="SECONDS", help=about)
    add("--hang-action", choices=("warn", "restart", "fail"), default="warn", help="what to do about a hang (warn)")
    add("--engine", choices=("local", "ray"), help="where the processes run; with ray the script must be on every node")
    add("-m", "--module", action="store_true", help="the script is a module, as in python -m")
    add("script")
    add("arguments", nargs=argparse.REMAINDER, help="of the script")
    return parser


def _parse_num_workers(text: str) -> int | tuple[int, int]:
    least, _, most = text.partition(":")
    try:
        return (int(least), int(most)) if most else int(least)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number or a range such as 2:4") from None


def _make_trainer(args: argparse.Namespace) -> Any:
    from paceline.train import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig
    from paceline.train.driver.script import Script, ScriptConfig

    script = _find_script(args)
    if args.num_workers == 0:
        raise ValueError(
            "--num-workers must be positive, got 0\n\nhint: `python script.py` runs it in one process, for a debugger"
        )
    config = RunConfig(
        name=args.name,
        storage_path=args.storage_path,
        failure_config=FailureConfig(
            max_failures=args.max_failures, hang_timeout_s=args.hang_timeout, hang_action=args.hang_action
        ),
        engine=args.engine,
        if_exists=args.if_exists,
    )
    return DataParallelTrainer(
        Script(script, tuple(args.arguments), args.module),
        backend_config=ScriptConfig(run_name=config.name or "", max_restarts=args.max_failures),
        scaling_config=ScalingConfig(args.num_workers, use_gpu=args.use_gpu),
        run_config=config,
    )


def _find_script(args: argparse.Namespace) -> str:
    """Return the script as workers receive it. Raises before any process starts if it does not exist."""
    if not args.module:
        if not Path(args.script).is_file():
            raise ValueError(f"{args.script} is not a file")
        return str(Path(args.script).absolute())
    sys.path.insert(0, os.getcwd())
    if importlib.util.find_spec(args.script) is None:
        raise ValueError(f"there is no module {args.script}")
    return str(args.script)
