"""`paceline launch slurm ... train.py`: write the batch script of a job for Slurm, or submit it.

The script itself is made by `slurm_script`; arguments are checked here, before anything is queued.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline._commands import cli_args, cli_output
from paceline._commands.slurm_script import SlurmJob, format_script, parse_time_s

MIN_GRACE_S = 10
_GPUS = re.compile(r"(?:[\w.-]+:)?[1-9]\d*")
_WORD = re.compile(r"[^\s\"'\\#\x00-\x1f]+")
_OPTION = re.compile(r"--[a-z][a-z-]*(?:=[^\n\x00]+)?")
_MODULE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_FIXED = {"--ntasks", "--ntasks-per-node", "--open-mode"}
"""Options of sbatch that the script does not work without."""
_OURS = {
    "--account": "--account",
    "--cpus-per-task": "--cpus-per-node",
    "--gpus-per-node": "--gpus-per-node",
    "--job-name": "--job-name",
    "--nodes": "--nodes",
    "--output": "--output",
    "--partition": "--partition",
    "--requeue": "--requeue",
    "--signal": "--grace",
    "--time": "--time",
}
"""Options of sbatch, and the option of ours for each. Those here are checked, and may change more of the script."""


def main(arguments: Sequence[str]) -> int:
    args = _make_parser().parse_args(arguments)
    job = _make_job(args)
    script = format_script(job)
    job_id = None
    if args.write is not None:
        _write_script(args.write, script)
    if args.submit:
        job_id = _submit_script(script)
    if args.json:
        return cli_output.print_json({"script": script, "path": args.write, "job_id": job_id})
    if args.write is None and not args.submit:
        print(script, end="")
    if job_id is not None:
        print(f"submitted {job.job_name} as job {job_id}")
    elif args.write is not None:
        cli_output.print_line(f"wrote {args.write}; `sbatch {args.write}` submits it")
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = cli_args.CommandParser(
        "launch",
        "Writes a batch script that runs a training script on nodes of Slurm: on several of them with Ray. Before the "
        "time limit and at a preemption the run saves a checkpoint and ends; the same job continues it.",
        "paceline launch slurm --nodes 4 --time 2-0 --requeue --submit train.py --lr 1",
        "paceline launch slurm --gpus-per-node 8 --write train.sbatch train.py",
        codes="0 fine, 2 bad usage, or Slurm rejected the job",
        runs=(),
        json="print the script, its path and the number of the job as one JSON document",
    )
    add = parser.add_argument
    positive = cli_args.parse_positive_int
    add("scheduler", choices=("slurm",), help="where the job runs: slurm")
    add("--nodes", type=positive, default=1, metavar="N", help="how many nodes (1)")
    add("--gpus-per-node", metavar="N", help="GPUs of each node: 8, or with a type, a100:8 (none)")
    add("--cpus-per-node", type=positive, metavar="N", help="cores of each node (what Slurm gives to one task)")
    add("--time", metavar="TIME", help="the time limit: minutes, or [days-]hours:minutes:seconds")
    add("--partition", metavar="NAME", help="the partition")
    add("--account", metavar="NAME", help="the account")
    add("--job-name", metavar="NAME", help="the job's name (that of the script)")
    add("--output", metavar="FILE", help="what the job prints (slurm-%%j.out)")
    add("--grace", type=positive, default=60, metavar="SECONDS",
        help="seconds before the time limit at which the run is notified (60)")  # fmt: skip
    add("--requeue", action="store_true", help="put the job back into the queue when it ends for such a notice")
    add("--setup", action="append", default=[], metavar="LINE",
        help="a line of bash before anything else, such as 'source .venv/bin/activate'; may be repeated")  # fmt: skip
    add("--python", metavar="PATH", help="the interpreter on the nodes (this one; with --setup: python)")
    add("--sbatch", action="append", default=[], metavar="OPTION",
        help="another option of sbatch, as in --sbatch=--constraint=ib; may be repeated")  # fmt: skip
    add("--write", metavar="FILE", help="write the script to a file instead of printing it")
    add("--submit", action="store_true", help="submit the job with sbatch")
    add("-m", "--module", action="store_true", help="the script is a module, as in python -m")
    add("script")
    add("arguments", nargs=argparse.REMAINDER, help="of the script")
    return parser


def _make_job(args: argparse.Namespace) -> SlurmJob:
    """Check the arguments. Raises `ValueError` that names the one to change."""
    if args.module and not _MODULE.fullmatch(args.script):
        raise ValueError(f"-m must be followed by the name of a module, such as my.trainer, got {args.script!r}")
    if not args.module and not Path(args.script).is_file():
        raise ValueError(f"{args.script} is not a file")
    if args.python == "":
        raise ValueError("--python must be the path of an interpreter, got ''")
    for name in ("partition", "account", "job_name", "output"):
        value = getattr(args, name)
        if value is not None and not _WORD.fullmatch(value):
            raise ValueError(f"{_option(name)} must be one word without quotes, got {value!r}")
    if args.gpus_per_node is not None and not _GPUS.fullmatch(args.gpus_per_node):
        raise ValueError(
            f"--gpus-per-node must be a positive number, with a type before it or not, got {args.gpus_per_node!r}\n\n"
            "hint: --gpus-per-node 8 or --gpus-per-node a100:8"
        )
    _check_times(args.time, args.grace)
    _check_setup(args.setup)
    if args.submit and args.output is not None:
        _check_directory(Path(args.output).parent)
    name = Path(args.script).stem if args.job_name is None else args.job_name
    job = SlurmJob(
        program=(*(("-m",) if args.module else ()), args.script, *args.arguments),
        job_name=re.sub(r"[^\w.-]", "_", name) if args.job_name is None else name,
        python=args.python or ("python" if args.setup else sys.executable),
        num_nodes=args.nodes,
        cpus_per_node=args.cpus_per_node,
        gpus_per_node=args.gpus_per_node,
        time=args.time,
        partition=args.partition,
        account=args.account,
        output=args.output,
        grace_s=args.grace,
        requeues=args.requeue,
        setup=tuple(args.setup),
    )
    return _add_options(job, args.sbatch)


def _check_times(time: str | None, grace_s: int) -> None:
    if grace_s < MIN_GRACE_S:
        raise ValueError(f"--grace must be at least {MIN_GRACE_S} seconds, got {grace_s}")
    if time is None:
        return
    time_s = parse_time_s(time)
    if not time_s:
        raise ValueError(
            f"--time must be a time of Slurm, got {time!r}\n\n"
            "hint: minutes, hours:minutes:seconds or days-hours, such as 90, 1:30:00 or 2-12"
        )
    if grace_s >= time_s:
        raise ValueError(f"--grace must be shorter than --time, got {grace_s} s of {time_s} s")


def _check_setup(lines: Sequence[str]) -> None:
    for line in lines:
        if not line.strip() or "\x00" in line:
            raise ValueError(f"--setup must be a line of bash, got {line!r}")
    bash = shutil.which("bash")
    if not lines or bash is None:
        return
    parsed = subprocess.run([bash, "-n"], input="\n".join(lines), capture_output=True, text=True, check=False)
    if parsed.returncode:
        raise ValueError(f"--setup must be bash, got what it cannot read: {parsed.stderr.strip()}")


def _check_directory(directory: Path) -> None:
    """Slurm makes no directory for the output: the job would fail at once, and say so nowhere."""
    if "%" not in str(directory) and not directory.is_dir():
        raise ValueError(
            f"--output must be in a directory that exists, got {directory}\n\n"
            f"hint: mkdir -p {shlex.quote(str(directory))}"
        )


def _add_options(job: SlurmJob, options: Sequence[str]) -> SlurmJob:
    """Add options of sbatch as they are, but for those that the script has or needs."""
    for option in options:
        if not _OPTION.fullmatch(option):
            raise ValueError(
                f"--sbatch must be a long option of sbatch, got {option!r}\n\n"
                "hint: --sbatch=--constraint=ib, one for each option"
            )
        name = option.partition("=")[0]
        if name in _FIXED:
            raise ValueError(f"--sbatch must not change what the script needs, got {option!r}")
        if name in _OURS:
            raise ValueError(
                f"--sbatch must be an option that `paceline launch` does not have itself, got {option!r}\n\n"
                f"hint: use {_OURS[name]} of `paceline launch`"
            )
    return dataclasses.replace(job, options=tuple(options))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _write_script(path: str, script: str) -> None:
    try:
        Path(path).write_text(script)
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror}") from error


def _submit_script(script: str) -> str:
    """Submit a script, and return the number of the job."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise FileNotFoundError(
            "sbatch was not found, so nothing was submitted\n\n"
            "hint: run this on a machine that submits to Slurm, or write the script with --write FILE"
        )
    ended = subprocess.run([sbatch, "--parsable"], input=script, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise OSError(f"sbatch rejected the job: {ended.stderr.strip() or f'exit code {ended.returncode}'}")
    return ended.stdout.strip().partition(";")[0]
