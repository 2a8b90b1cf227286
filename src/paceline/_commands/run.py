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

from paceline._commands import cli_args

if TYPE_CHECKING:
    from paceline._storage.run_location import RunLocation

DONE, FAILED, NOT_RUN, PREEMPTED, INTERRUPTED = 0, 1, 2, 75, 130


def main(arguments: Sequence[str]) -> int:
    asked = make_parser().parse_args(arguments)
    from paceline._engine.local.launchers import prewarm
    from paceline.train.script import ScriptConfig

    prewarm(*ScriptConfig.preload)
    with contextlib.redirect_stdout(sys.stderr) if asked.json else contextlib.nullcontext():
        code, home = _fit_trainer(asked)
    if asked.json and home is not None:
        cli_args.print_json_summary(home)
    return code


def _fit_trainer(asked: argparse.Namespace) -> tuple[int, RunLocation | None]:
    """Return the exit code, and the location of the run once it is known."""
    from paceline._core.errors import PacelineError, PreemptionError, TrainingFailedError

    home: RunLocation | None = None
    code = DONE
    try:
        trainer = _make_trainer(asked)
        home = trainer.run_config.home
        trainer.fit()
    except PreemptionError:
        code = PREEMPTED  # Already printed, with how to resume.
    except TrainingFailedError as error:
        code = _print_and_return(str(error), FAILED)
    except (PacelineError, OSError, ImportError, ValueError) as error:
        return _print_and_return(str(error), NOT_RUN), None
    except KeyboardInterrupt:
        code = INTERRUPTED
    return code, home


def make_parser() -> argparse.ArgumentParser:
    made = cli_args.CommandParser(
        "run",
        "Runs a script in many processes, with the environment that torchrun gives: RANK, WORLD_SIZE, LOCAL_RANK, "
        "MASTER_ADDR, MASTER_PORT and so on. The script is not changed.",
        "paceline run --num-workers 4 --max-failures 3 train.py --lr 0.1",
        "paceline run -n 2:8 --name resnet -m my.trainer",
        codes="0 it is complete, 1 it failed, 75 it was preempted, 2 it cannot be run, 130 Ctrl-C",
    )
    add = made.add_argument
    add("-n", "--num-workers", "--nproc-per-node", "--nproc_per_node", type=_parse_num_workers, default=1, metavar="N",
        help="how many processes; 2:4 is from two to four, as many as there is room for (1)")  # fmt: skip
    add("--use-gpu", action="store_true", help="a GPU for each")
    add("--name", help="of the run (a new one)")
    add("--storage-path", metavar="DIRECTORY", help="where the run is kept, its logs among it (~/paceline_results)")
    add("--max-failures", "--max-restarts", "--max_restarts", type=int, default=0, metavar="N",
        help="how often all processes are started again when one fails (0; -1 always)")  # fmt: skip
    add("--hang-timeout", type=float, metavar="SECONDS", help="without a sign of life (30, or what reports let expect)")
    add("--hang-action", choices=("warn", "restart", "fail"), default="warn", help="what is done about a hang (warn)")
    add("--engine", choices=("local", "ray"), help="where the processes live; on Ray the script is on every node")
    add("--json", action="store_true",
        help="when it has ended, print what came of it as JSON, and all else to the standard error")  # fmt: skip
    add("-m", "--module", action="store_true", help="the script is a module, as in python -m")
    add("script")
    add("arguments", nargs=argparse.REMAINDER, help="of the script")
    return made


def _parse_num_workers(text: str) -> int | tuple[int, int]:
    least, _, most = text.partition(":")
    try:
        return (int(least), int(most)) if most else int(least)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor two of them such as 2:4") from None


def _make_trainer(asked: argparse.Namespace) -> Any:
    from paceline.train import DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig
    from paceline.train.script import Script, ScriptConfig

    script = _find_script(asked)
    if asked.num_workers == 0:
        raise ValueError("--num-workers 0: use 1 or more; `python script.py` runs it in one process, for a debugger")
    config = RunConfig(
        name=asked.name,
        storage_path=asked.storage_path,
        failure_config=FailureConfig(
            max_failures=asked.max_failures, hang_timeout_s=asked.hang_timeout, hang_action=asked.hang_action
        ),
        engine=asked.engine,
    )
    return DataParallelTrainer(
        Script(script, tuple(asked.arguments), asked.module),
        backend_config=ScriptConfig(run_name=config.name or "", max_restarts=asked.max_failures),
        scaling_config=ScalingConfig(asked.num_workers, use_gpu=asked.use_gpu),
        run_config=config,
    )


def _find_script(asked: argparse.Namespace) -> str:
    """Return the script as workers receive it. Raises before any process starts if it does not exist."""
    if not asked.module:
        if not Path(asked.script).is_file():
            raise ValueError(f"{asked.script} is not a file")
        return str(Path(asked.script).absolute())
    sys.path.insert(0, os.getcwd())
    if importlib.util.find_spec(asked.script) is None:
        raise ValueError(f"there is no module {asked.script}")
    return str(asked.script)


def _print_and_return(text: str, code: int) -> int:
    print(f"paceline: {text}", file=sys.stderr)
    return code
