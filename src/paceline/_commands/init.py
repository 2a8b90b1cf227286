"""`paceline init [PATH]`: write a small training script to start from. The scripts are the files in `starters/`.

They end in `.py.txt`: they are what users get, not modules of the package.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from paceline._commands import cli_args, cli_output

STARTERS = Path(__file__).parent / "starters"
FRAMEWORKS = {
    "plain": "NumPy",
    "torch": "PyTorch",
    "jax": "JAX",
    "tensorflow": "TensorFlow",
    "xgboost": "XGBoost",
    "lightgbm": "LightGBM",
    "lightning": "Lightning",
    "transformers": "Transformers",
}
SCRIPT = "train.py"


def main(arguments: Sequence[str]) -> int:
    parser = cli_args.CommandParser(
        "init",
        "Writes a small training script that runs on two workers in seconds, without network, and continues after a "
        "kill. Without --framework it uses PyTorch if that is installed, and else NumPy alone.",
        "paceline init --framework torch",
        codes="0 fine, 2 bad usage, or the file exists",
        runs=(),
    )
    add = parser.add_argument
    add("path", nargs="?", default=SCRIPT, metavar="PATH", help=f"the .py file to write, or its directory; {SCRIPT}")
    add("--framework", choices=FRAMEWORKS, metavar="NAME", help=", ".join(FRAMEWORKS))
    add("--force", action="store_true", help="overwrite the file")
    args = parser.parse_args(arguments)
    framework = args.framework or ("torch" if find_spec("torch") else "plain")
    path = Path(args.path).expanduser()
    if path.suffix != ".py" or path.is_dir():
        path /= SCRIPT
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_file(path, (STARTERS / f"{framework}.py.txt").read_bytes(), is_forced=args.force)
    steps = list(_next_steps(path, framework))
    if args.json:
        return cli_output.print_json({"path": str(path), "framework": framework, "next": [step for step, _ in steps]})
    print(f"{path} trains with {FRAMEWORKS[framework]} on two workers. Next:\n")
    width = max(len(step) for step, _ in steps)
    for step, purpose in steps:
        print(f"  {step:<{width}}  {purpose}")
    return 0


def _write_file(path: Path, content: bytes, *, is_forced: bool) -> None:
    try:
        with open(path, "wb" if is_forced else "xb") as file:
            file.write(content)
    except FileExistsError:
        raise FileExistsError(f"{path} exists\n\nhint: give another PATH, or --force to overwrite it") from None


def _next_steps(path: Path, framework: str) -> list[tuple[str, str]]:
    """Commands to type now, and what each is for."""
    steps = []
    if framework != "plain" and find_spec(framework) is None:
        steps.append((f'pip install "paceline[{framework}]"', f"{FRAMEWORKS[framework]} is not installed"))
    directory = os.path.dirname(path)
    if directory:
        steps.append((f"cd {shlex.quote(directory)}", "runs are stored in the directory you start from"))
    return [
        *steps,
        (f"python {shlex.quote(path.name)}", "train; after Ctrl-C or a kill, the same command continues"),
        ("paceline show runs/starter", "what happened, and where the time went"),
        ("paceline metrics runs/starter", "the reported metrics"),
    ]
