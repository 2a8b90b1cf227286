"""Run a script with faults: python -m paceline.testing.faults --kill 1@upload:3 train.py its own arguments"""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any

from paceline.testing.faults import PHASES, Faults


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m paceline.testing.faults", description="Run a script with faults.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="workers killed at moments of the seed")
    for name in ("kill", "hang", "oom"):
        parser.add_argument(f"--{name}", action="append", default=[], type=_parse_moment, metavar="RANK@PHASE[:NUMBER]")
    parser.add_argument(
        "--lose-driver", action="append", default=[], metavar="LINE|EVENT", help="run again to continue"
    )
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    args = parser.parse_args(arguments)
    faults = Faults(args.seed)
    for name in ("kill", "hang", "oom"):
        for rank, at in getattr(args, name):
            faults = getattr(faults, name)(rank, at)
    for after in args.lose_driver:
        faults = faults.lose_driver(int(after) if after.isdigit() else after)
    faults = faults.kills(args.kills)
    print(f"paceline: faults: {faults}", file=sys.stderr)
    sys.argv[:] = [args.script, *args.args]
    # As when it runs by itself: it can import modules from its own directory.
    sys.path.insert(0, str(Path(args.script).resolve().parent))
    with faults.applied():
        runpy.run_path(args.script, run_name="__main__")


def _parse_moment(text: str) -> tuple[int, Any]:
    rank, at, moment = text.partition("@")
    phase, _, number = moment.partition(":")
    if not at or not rank.isdigit() or phase not in PHASES or (number and not number.isdigit()):
        raise argparse.ArgumentTypeError(f"must be RANK@PHASE or RANK@PHASE:NUMBER, got {text!r}")
    return int(rank), (phase, int(number)) if number else phase


if __name__ == "__main__":
    main(sys.argv[1:])
