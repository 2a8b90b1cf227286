"""The batch script of `paceline launch slurm`: what a job is asked to be, and the bash that Slurm runs for it.

Pure. The script is for people to read and change: it needs nothing of Paceline but the training script itself.
On one node the script trains there. On several, one task per node runs Ray, and the first node the training script.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


@dataclass(frozen=True)
class SlurmJob:
    """What `paceline launch slurm` was asked for, checked."""

    program: tuple[str, ...]
    """What follows the name of the interpreter: a script or `-m` and a module, then its arguments."""
    job_name: str
    python: str
    num_nodes: int = 1
    cpus_per_node: int | None = None
    gpus_per_node: str | None = None
    """A number, or a type and a number such as `a100:8`."""
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    output: str | None = None
    grace_s: int = 60
    requeues: bool = False
    setup: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """More options of sbatch, with their dashes."""


def parse_time_s(text: str) -> int | None:
    """Return the seconds that a time of Slurm stands for, or None if it is none.

    Slurm reads `90` and `90:00` as minutes, `1:30:00` as hours, and with days in front, `1-12`, as hours too.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if len(numbers) == 3:
        return (numbers[0] * 60 + numbers[1]) * 60 + numbers[2]
    minutes, seconds = [*numbers, 0][:2]
    return minutes * 60 + seconds


def format_script(job: SlurmJob) -> str:
    """Return the whole batch script."""
    train = _TRAIN.replace("PROGRAM", shlex.join(job.program))
    sections = [
        "\n".join(("#!/bin/bash", *(f"#SBATCH {option}" for option in list_options(job)))),
        "\n".join(_format_settings(job)),
        _NOTICES,
        *([train] if job.num_nodes == 1 else [_RAY.replace("GPUS", _format_num_gpus(job)), _JOIN + train, _LEAVE]),
        *([_REQUEUE] if job.requeues else []),
        'exit "$status"',
    ]
    return "\n\n".join(sections) + "\n"


def list_options(job: SlurmJob) -> Iterator[str]:
    """The options of sbatch, in the order in which the script has them."""
    values: Sequence[tuple[str, object]] = (
        ("job-name", job.job_name),
        ("nodes", job.num_nodes),
        ("ntasks-per-node", 1),
        ("cpus-per-task", job.cpus_per_node),
        ("gpus-per-node", job.gpus_per_node),
        ("time", job.time),
        ("partition", job.partition),
        ("account", job.account),
        ("output", job.output),
        ("open-mode", "append"),  # The log of the job that was put back into the queue stays.
        ("signal", f"B:USR1@{job.grace_s}"),
    )
    yield from (f"--{name}={value}" for name, value in values if value is not None)
    if job.requeues:
        yield "--requeue"
    yield from job.options


def _format_num_gpus(job: SlurmJob) -> str:
    return f" --num-gpus={job.gpus_per_node.rpartition(':')[2]}" if job.gpus_per_node else ""


def _format_settings(job: SlurmJob) -> Iterator[str]:
    yield from job.setup
    yield f"python={shlex.quote(job.python)}"
    # The rest of the time is for ending workers and Ray.
    yield f"export PACELINE_PREEMPTION_GRACE_S={job.grace_s - max(1, job.grace_s // 10)}"


_NOTICES = """\
# Before the time limit, Slurm sends USR1 to this script; at a preemption, TERM to what srun started; at scancel, TERM
# to all. The training script takes either as a notice: it ends at its next report, with exit code 75.
child=
notice=
interrupted=
trap 'notice=yes; interrupted=yes; [ -z "$child" ] || kill -USR1 "$child" 2> /dev/null' USR1 TERM

run() { # Sets status. A notice ends a wait, not the program.
    interrupted=
    "$@" &
    child=$!
    [ -z "$notice" ] || kill -USR1 "$child" 2> /dev/null
    wait "$child"
    status=$?
    while [ -n "$interrupted" ]; do
        interrupted=
        wait "$child"
        again=$?
        [ "$again" -eq 127 ] || status=$again
    done
    child=
}"""

_RAY = r"""# Ray on each node, the first of which is its head. It outlives a notice; USR2 ends it.
ip=$(for each in $(hostname --ip-address) $(hostname -I); do
    [[ $each == 127.* || $each == *:* ]] || { echo "$each"; break; }
done)
port=$((20000 + SLURM_JOB_ID % 10000)) # two jobs may share a node
export python ip port
node='
dir=/tmp/ray-$SLURM_JOB_ID # local, and short
if [ "$SLURM_NODEID" -eq 0 ]; then
    where=(--head --node-ip-address="$ip" --port="$port" --temp-dir="$dir" --include-dashboard=false)
else
    where=(--address="$ip:$port")
fi
ended=
trap : USR1 TERM
trap "ended=yes" USR2
setsid "$python" -m ray.scripts.scripts start "${where[@]}" --num-cpus="$SLURM_CPUS_ON_NODE"GPUS \
    --disable-usage-stats --block > /dev/null &
ray=$!
while [ -z "$ended" ] && kill -0 "$ray" 2> /dev/null; do
    wait "$ray"
    status=$?
done
if [ -n "$ended" ]; then
    kill "$ray"
    wait "$ray"
    status=0
fi
rm -rf "$dir"
exit "$status"
'
srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --cpu-bind=none bash -c "$node" &
ray=$!
export RAY_ADDRESS="$ip:$port"

# A cluster refuses what it cannot hold, so all nodes have to be there first.
join='
import os, sys, time
import ray

num_nodes, pid, deadline = int(sys.argv[1]), int(sys.argv[2]), time.monotonic() + 300
num_alive = 0
while num_alive < num_nodes:
    try:
        os.kill(pid, 0)
        if not ray.is_initialized():
            ray.init(log_to_driver=False, logging_level="ERROR")
        num_alive = sum(node["Alive"] for node in ray.nodes())
    except ProcessLookupError:
        sys.exit("paceline: Ray ended before all nodes had joined; the reason is above")
    except ConnectionError:
        pass
    if time.monotonic() > deadline:
        sys.exit(f"paceline: {num_alive} of {num_nodes} nodes joined the Ray cluster in 300 s")
    time.sleep(0.2)
'"""

_JOIN = """\
run "$python" -c "$join" "$SLURM_JOB_NUM_NODES" "$ray"
[ "$status" -ne 0 ] || """

_TRAIN = 'run srun --overlap --nodes=1 --ntasks=1 --nodelist="$SLURMD_NODENAME" --cpu-bind=none "$python" PROGRAM'

_LEAVE = """\
kill -USR2 "$ray" 2> /dev/null
wait "$ray\""""

_REQUEUE = """\
# 75: ended by a notice; above 128: killed by one that came before training had begun. A cancelled job is not running.
if [ "$status" -eq 75 ] || { [ -n "$notice" ] && [ "$status" -gt 128 ]; }; then
    if [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; then
        echo "paceline: back into the queue" >&2
        scontrol requeue "$SLURM_JOB_ID"
    fi
fi"""
