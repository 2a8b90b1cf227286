"""Every environment variable that Paceline reads, in one frozen value.

Nothing else in the package reads Paceline's environment variables. Settings are for operators and tests; what a
training script decides is an argument of a public class instead.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._core.arguments import bad_value, join_or

ORIGINAL_DIRECTORY = "TUNE_ORIG_WORKING_DIR"
"""In a trial's worker: the directory that the script was started in. Its name is Ray's, so that scripts find it."""

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")


@dataclass(frozen=True)
class Settings:
    storage_path: str = "~/paceline_results"
    """Where runs are stored if `RunConfig(storage_path=...)` is not given."""
    prewarm: bool = True
    """Start the process that workers fork from as soon as a framework's module is imported."""
    start_method: str = "fork"
    """`fork` from the zygote, or `spawn` a fresh interpreter for every worker."""
    portable: bool = False
    """Use plain POSIX (spawn, unlinked files, end of file) even where Linux offers something better."""
    verbosity: int = 1
    """0: only errors. 1: one line per event. 2: also every report of rank 0."""
    progress_s: float = 30.0
    """Without a terminal: how often to print progress."""
    report_notice_s: float = 30.0
    """How long a checkpoint may wait for the report of another rank before the terminal says so."""
    preemption_grace_s: float = 30.0
    """How long the machine stays after SIGTERM or SIGUSR1: the grace period of the cluster's scheduler."""
    exit_grace_s: float = 10.0
    """How long a worker whose function has returned may take to exit before it is killed."""
    callback_timeout_s: float = 300.0
    """How long one call of a callback may take before the callback is dropped."""
    lease_ttl_s: float = 30.0
    """How long a driver may be silent before another one may take over its run."""
    spool_path: str = "~/.cache/paceline/runs"
    """Local directory for files of a run in a store, before they are uploaded."""
    storage_patience_s: float = 120.0
    """How long a call to a store may take without transferring a byte."""
    log_limit_mb: float = 64.0
    """How large the log of a rank may become, in megabytes: its first part and its latest output are kept."""
    engine: str | None = None
    """`local` or `ray`, if the script does not choose."""
    cluster_patience_s: float = 20.0
    """How long the head of a cluster may not answer before the cluster counts as lost. Ray's own limit is 60."""
    node_patience_s: float = 60.0
    """How long a node of a cluster may not answer the driver before its workers are replaced."""
    ray_address: str | None = None
    """Ray's own `RAY_ADDRESS`: the address of a cluster."""
    chdir_to_trial_dir: bool = True
    """Each trial of a search has a working directory of its own."""
    auto_loggers: bool = True
    """Each trial writes `progress.csv`, `result.json`, `params.json` and TensorBoard's event files."""
    terminal: str | None = None
    """`TERM`: the type of the terminal."""
    omp_num_threads: str | None = None
    """OpenMP's own `OMP_NUM_THREADS`: the number of compute threads of a worker, if the user sets it."""
    no_color: bool = False
    """The standard `NO_COLOR`: no colours on a terminal."""


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the current settings; an invalid value raises an error with its name."""
    default = Settings()
    return Settings(
        storage_path=environ.get("PACELINE_STORAGE_PATH") or default.storage_path,
        prewarm=_parse_flag(environ, "PACELINE_PREWARM", default.prewarm),
        start_method=start_method(environ),
        portable=is_portable(environ),
        verbosity=int(_parse_choice(environ, "PACELINE_VERBOSITY", ("0", "1", "2"), str(default.verbosity))),
        progress_s=_parse_seconds(environ, "PACELINE_PROGRESS_S", default.progress_s),
        report_notice_s=_parse_seconds(environ, "PACELINE_REPORT_NOTICE_S", default.report_notice_s),
        preemption_grace_s=_parse_seconds(environ, "PACELINE_PREEMPTION_GRACE_S", default.preemption_grace_s),
        exit_grace_s=exit_grace_s(environ),
        callback_timeout_s=_parse_seconds(environ, "PACELINE_CALLBACK_TIMEOUT_S", default.callback_timeout_s),
        lease_ttl_s=lease_ttl_s(environ),
        spool_path=environ.get("PACELINE_SPOOL_PATH") or default.spool_path,
        storage_patience_s=_parse_seconds(environ, "PACELINE_STORAGE_PATIENCE_S", default.storage_patience_s),
        cluster_patience_s=_parse_seconds(environ, "PACELINE_CLUSTER_PATIENCE_S", default.cluster_patience_s),
        node_patience_s=_parse_seconds(environ, "PACELINE_NODE_PATIENCE_S", default.node_patience_s),
        log_limit_mb=log_limit_bytes(environ) / 1e6,
        engine=_parse_choice(environ, "PACELINE_ENGINE", ("local", "ray"), "") or None,
        ray_address=environ.get("RAY_ADDRESS") or None,
        chdir_to_trial_dir=_parse_flag(environ, "PACELINE_CHDIR_TO_TRIAL_DIR", default.chdir_to_trial_dir)
        and _parse_flag(environ, "RAY_CHDIR_TO_TRIAL_DIR", default.chdir_to_trial_dir),
        auto_loggers=_parse_flag(environ, "PACELINE_AUTO_LOGGERS", default.auto_loggers)
        and not _parse_flag(environ, "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", False),
        terminal=environ.get("TERM") or None,
        omp_num_threads=environ.get("OMP_NUM_THREADS") or None,
        no_color=bool(environ.get("NO_COLOR")),
    )


# The settings that each trial of a search asks for, alone: to load all of them takes longer.


def is_portable(environ: Mapping[str, str] = os.environ) -> bool:
    return _parse_flag(environ, "PACELINE_PORTABLE", Settings.portable)


def start_method(environ: Mapping[str, str] = os.environ) -> str:
    return _parse_choice(environ, "PACELINE_START_METHOD", ("fork", "spawn"), Settings.start_method)


def exit_grace_s(environ: Mapping[str, str] = os.environ) -> float:
    return _parse_seconds(environ, "PACELINE_EXIT_GRACE_S", Settings.exit_grace_s)


def lease_ttl_s(environ: Mapping[str, str] = os.environ) -> float:
    return _parse_seconds(environ, "PACELINE_LEASE_TTL_S", Settings.lease_ttl_s)


def log_limit_bytes(environ: Mapping[str, str] = os.environ) -> float:
    return _parse_positive(environ, "PACELINE_LOG_LIMIT_MB", Settings.log_limit_mb, "number of megabytes") * 1e6


def known_variables() -> frozenset[str]:
    """The names of all variables that `load` reads."""
    names: set[str] = set()

    class NameRecorder(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            names.add(name)
            return default

    load(NameRecorder())
    return frozenset(names)


_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TF_CONFIG")


def launcher_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that torchrun or another launcher set for a process it started. Frameworks believe them."""
    return {name: environ[name] for name in _LAUNCHER if name in environ}


_MACHINE_PREFIXES = ("RAY_", "LD_", "PYTHON", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
"""Prefixes of variables that mean nothing on another machine."""


def portable_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables to pass to a process on another machine that acts for this one."""
    return {name: value for name, value in environ.items() if not name.startswith(_MACHINE_PREFIXES)}


def adopt_variables(variables: Mapping[str, str]) -> None:
    """Set variables that this machine does not set itself, and all of Paceline's."""
    for name, value in variables.items():
        if name.startswith("PACELINE_") or name not in os.environ:
            os.environ[name] = value


_DESCRIPTIVE = """
    CUDA_VISIBLE_DEVICES CUBLAS_WORKSPACE_CONFIG JAX_PLATFORMS MKL_NUM_THREADS NCCL_DEBUG NCCL_IB_DISABLE
    NCCL_P2P_DISABLE NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME OMP_NUM_THREADS PYTHONHASHSEED PYTORCH_CUDA_ALLOC_CONF
    SLURM_JOB_ID SLURM_JOB_NAME SLURM_JOB_NODELIST SLURM_JOB_PARTITION SLURM_NNODES SLURM_NTASKS
    TF_FORCE_GPU_ALLOW_GROWTH TORCH_DISTRIBUTED_DEBUG XLA_FLAGS
"""


def descriptive_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that explain how a run behaved and are never secret, and Paceline's own: for the run's description."""
    return {n: v for n, v in sorted(environ.items()) if n in _DESCRIPTIVE.split() or n.startswith("PACELINE_")}


def paceline_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Paceline's variables that are set, for a process elsewhere that should use them too."""
    return {name: value for name, value in environ.items() if name.startswith("PACELINE_")}


def spool_root() -> Path:
    """The local directory for runs that are kept in a store."""
    path, cache = load().spool_path, os.environ.get("XDG_CACHE_HOME")
    if path == Settings.spool_path and cache:
        path = f"{cache}/paceline/runs"
    return Path(path).expanduser().absolute()


def default_storage_path() -> str:
    path = load().storage_path
    return path if "://" in path else str(Path(path).expanduser().absolute())


def compare_environment(wanted: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return which variables of this process are not in `wanted`, and which are missing or different."""
    given = dict(os.environ)
    return [name for name in given if name not in wanted], dict(wanted.items() - given.items())


@contextlib.contextmanager
def override_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within a block."""
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


def _parse_flag(environ: Mapping[str, str], name: str, default: bool) -> bool:
    text = environ.get(name)
    if text is None:
        return default
    if text.lower() not in (*_TRUE, *_FALSE):
        raise bad_value(name, "0 or 1", text)
    return text.lower() in _TRUE


def _parse_choice(environ: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str) -> str:
    text = environ.get(name) or default
    if text and text not in allowed:
        raise bad_value(name, join_or(allowed), text)
    return text


def _parse_seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    return _parse_positive(environ, name, default, "number of seconds")


def _parse_positive(environ: Mapping[str, str], name: str, default: float, noun: str) -> float:
    text = environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise bad_value(name, f"a positive {noun}", text)
    return value
