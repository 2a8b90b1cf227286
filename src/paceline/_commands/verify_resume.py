"""`paceline verify-resume script.py`: run the script and turn its first `fit()` into a check of exact resuming."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline._commands import cli_args

EXACT, DIFFERS, UNCHECKED = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    parser = cli_args.CommandParser(
        "verify-resume",
        "Restores a commit of the script's run into a shadow run, replays it, and compares metrics and checkpoints "
        "with those of the run, which is not written to. The script runs until it calls fit().",
        "paceline verify-resume --fresh --steps 10 train.py --lr 0.1",
        codes="0 it resumes exactly, 1 it does not, 2 cannot be checked",
        runs=(),
        json="print the whole proof as JSON",
    )
    add, positive = parser.add_argument, cli_args.parse_positive_int
    add("--steps", type=positive, metavar="N", help="reports to replay (until the next checkpoint)")
    add("--fresh", action="store_true", help="train a new run to compare with, and remove it again")
    add("--ignore", action="append", default=[], metavar="METRIC", help="a metric that may differ; may be a pattern")
    add("--tolerance", type=float, default=0.0, help="by how much numbers may differ (0)")
    add("--scratch", metavar="DIRECTORY", help="directory for the temporary shadow runs")
    add("script")
    add("arguments", nargs=argparse.REMAINDER, help="of the script")
    args = parser.parse_args(arguments)
    if not Path(args.script).is_file():
        return _print_unchecked(args, f"{args.script} is not a file")
    with contextlib.redirect_stdout(sys.stderr), _log_progress():
        # The script's own output is not part of the result.
        proof = _prove_script(args)
    if isinstance(proof, str):
        return _print_unchecked(args, proof)
    print(json.dumps(proof.as_dict(), indent=1) if args.json else proof)
    return {"exact": EXACT, "differs": DIFFERS, "unchecked": UNCHECKED}[proof.verdict]


class _ProofDone(BaseException):
    """Ends the script at its `fit()`. Not an `Exception`, so that scripts that catch those still end."""


def _prove_script(args: argparse.Namespace) -> Any:
    """Return the proof for the first trainer the script fits, or the reason why there is none."""
    from paceline.train.result import Result
    from paceline.train.resume_proof.proof import verify_resume
    from paceline.train.trainer import DataParallelTrainer, Fit, intercept_fits

    def prove_instead_of_fit(trainer: DataParallelTrainer, fit: Fit) -> Result:
        # Verify inside fit(), not after the script: what its functions use in `__main__` is still in place.
        proof = verify_resume(
            trainer,
            num_steps=args.steps,
            fresh=args.fresh,
            ignore=args.ignore,
            tolerance=args.tolerance,
            scratch=args.scratch,
        )
        raise _ProofDone(proof)

    try:
        with intercept_fits(prove_instead_of_fit), _script_environment(args.script, args.arguments):
            runpy.run_path(args.script, run_name="__main__")
    except _ProofDone as ended:
        return ended.args[0]
    except KeyboardInterrupt:
        raise
    except SystemExit as ended:
        return f"{args.script} exited with {ended.code!r} before it called fit()"
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        return f"{args.script} failed: {type(error).__name__}: {error}"
    return f"{args.script} ended without calling fit() of a trainer"


@contextlib.contextmanager
def _log_progress() -> Iterator[None]:
    log = logging.getLogger("paceline.resume_proof")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("paceline: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)


@contextlib.contextmanager
def _script_environment(script: str, arguments: Sequence[str]) -> Iterator[None]:
    """Set up `sys` as the interpreter does for a script."""
    argv, path = sys.argv, sys.path
    sys.argv = [script, *arguments]
    sys.path = [str(Path(script).resolve().parent), *path]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, path


def _print_unchecked(args: argparse.Namespace, reason: str) -> int:
    print(json.dumps({"verdict": "unchecked", "reason": reason}) if args.json else f"cannot be checked: {reason}")
    return UNCHECKED
