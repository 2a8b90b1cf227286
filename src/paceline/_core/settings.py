"""Every environment variable that Paceline reads, in one frozen value.

Nothing else in the package looks at its own environment variables. A setting is for operators and tests;
what a training script decides is an argument of a public class instead.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")


@dataclass(frozen=True)
class Settings:
    storage_path: str = "~/paceline_results"
    """Where runs are kept when `RunConfig(storage_path=...)` is not given."""
    prewarm: bool = True
    """Start the process that workers fork from as soon as a framework's module is imported."""
    start_method: str = "fork"
    """`fork` from the warm process, or `spawn` a fresh interpreter for every worker."""
    portable: bool = False
    """Use the plain POSIX ways (spawn, unlinked files, end of file) even where Linux offers better ones."""
    verbosity: int = 1
    """0: only errors. 1: one line for each thing that happened. 2: also every report of rank 0."""
    progress_s: float = 30.0
    """Where there is no terminal: how often it is said how far a run is."""
    report_notice_s: float = 30.0
    """How long a checkpoint may wait for the report of another rank before that is said on the terminal."""
    preemption_grace_s: float = 30.0
    """How long after SIGTERM or SIGUSR1 the machine stays: what the cluster's scheduler gives a job to end."""
    lease_ttl_s: float = 30.0
    """How long a driver may be silent before another one may take over its run."""
    spool_path: str = "~/.cache/paceline/runs"
    """Where files of a run that is kept in a store lie before they are uploaded."""
    storage_patience_s: float = 120.0
    """How long a call to a store may go without moving a byte."""
    engine: str | None = None
    """`local` or `ray`, where the script does not say."""
    cluster_patience_s: float = 20.0
    """How long the head of a cluster may not answer before the cluster is taken for lost. Ray's own limit is 60."""
    ray_address: str | None = None
    """Ray's own `RAY_ADDRESS`: where a cluster is."""
    terminal: str | None = None
    """`TERM`: what kind of terminal there is."""
    omp_num_threads: str | None = None
    """OpenMP's own `OMP_NUM_THREADS`: how many threads a worker computes with, where the user says so."""
    no_color: bool = False
    """Everybody's own `NO_COLOR`: no colours on a terminal."""


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings in force now; a value that cannot be read is refused by name."""
    default = Settings()
    return Settings(
        storage_path=environ.get("PACELINE_STORAGE_PATH") or default.storage_path,
        prewarm=_flag(environ, "PACELINE_PREWARM", default.prewarm),
        start_method=_one_of(environ, "PACELINE_START_METHOD", ("fork", "spawn"), default.start_method),
        portable=_flag(environ, "PACELINE_PORTABLE", default.portable),
        verbosity=int(_one_of(environ, "PACELINE_VERBOSITY", ("0", "1", "2"), str(default.verbosity))),
        progress_s=_seconds(environ, "PACELINE_PROGRESS_S", default.progress_s),
        report_notice_s=_seconds(environ, "PACELINE_REPORT_NOTICE_S", default.report_notice_s),
        preemption_grace_s=_seconds(environ, "PACELINE_PREEMPTION_GRACE_S", default.preemption_grace_s),
        lease_ttl_s=_seconds(environ, "PACELINE_LEASE_TTL_S", default.lease_ttl_s),
        spool_path=environ.get("PACELINE_SPOOL_PATH") or default.spool_path,
        storage_patience_s=_seconds(environ, "PACELINE_STORAGE_PATIENCE_S", default.storage_patience_s),
        cluster_patience_s=_seconds(environ, "PACELINE_CLUSTER_PATIENCE_S", default.cluster_patience_s),
        engine=_one_of(environ, "PACELINE_ENGINE", ("local", "ray"), "") or None,
        ray_address=environ.get("RAY_ADDRESS") or None,
        terminal=environ.get("TERM") or None,
        omp_num_threads=environ.get("OMP_NUM_THREADS") or None,
        no_color=bool(environ.get("NO_COLOR")),
    )


_OF_A_MACHINE = ("RAY_", "LD_", "PYTHON", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
"""Variables, by how their names begin, that mean nothing on another machine."""


def variables_for_elsewhere(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What is set here, for a process on another machine that is to act in the place of this one."""
    return {name: value for name, value in environ.items() if not name.startswith(_OF_A_MACHINE)}


def take_from_elsewhere(variables: Mapping[str, str]) -> None:
    """Set what this machine does not say itself; of our own, all."""
    for name, value in variables.items():
        if name.startswith("PACELINE_") or name not in os.environ:
            os.environ[name] = value


_TELLING = (
    "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG",
    "JAX_PLATFORMS",
    "MKL_NUM_THREADS",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTORCH_CUDA_ALLOC_CONF",
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_PARTITION",
    "SLURM_NNODES",
    "SLURM_NTASKS",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TORCH_DISTRIBUTED_DEBUG",
    "XLA_FLAGS",
)


def telling_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those that say how a run went and that are never a secret, with our own: for its description."""
    return {n: v for n, v in sorted(environ.items()) if n in _TELLING or n.startswith("PACELINE_")}


def own_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those variables of ours that are set, for a process elsewhere in which they are to hold as well."""
    return {name: value for name, value in environ.items() if name.startswith("PACELINE_")}


def spool_root() -> Path:
    """Where runs that are kept in a store have their directories on this machine."""
    chosen, cache = load().spool_path, os.environ.get("XDG_CACHE_HOME")
    if chosen == Settings.spool_path and cache:
        chosen = f"{cache}/paceline/runs"
    return Path(chosen).expanduser()


def default_storage_path() -> str:
    chosen = load().storage_path
    return chosen if "://" in chosen else str(Path(chosen).expanduser())


@contextlib.contextmanager
def variables_set(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for as long as a block lasts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _flag(environ: Mapping[str, str], name: str, default: bool) -> bool:
    text = environ.get(name)
    if text is None:
        return default
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(f"{name}={text!r} is not a yes or a no: use 1 or 0")


def _one_of(environ: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    text = environ.get(name) or default
    if text and text not in allowed:
        raise ValueError(f"{name}={text!r} is not one of {', '.join(allowed)}")
    return text


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise ValueError(f"{name}={text!r} is not a number of seconds above 0")
    return value
