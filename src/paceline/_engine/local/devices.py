"""The cores and GPUs of this machine, and how they are assigned to workers."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from paceline._core import system
from paceline._core.resource_planner import UNIT, assign_gpus, to_units
from paceline._engine.base import WorkerResources


@dataclass(frozen=True)
class Machine:
    num_cores: int
    gpus: tuple[str, ...]
    """As in `CUDA_VISIBLE_DEVICES`: indices or UUIDs."""
    gpu_assignments: tuple[tuple[int, ...], ...] | None = None
    """For a part of a machine with fixed assignments: the indices into `gpus` of each process, in order."""


@dataclass(frozen=True)
class DeviceShare:
    num_threads: int
    devices: tuple[int, ...]
    """Indices among the visible GPUs."""
    env: dict[str, str]


def this_machine() -> Machine:
    """Return what this process may use. A worker that starts a run of its own divides its own share."""
    num_cores = system.num_cores()
    if system.in_worker and "OMP_NUM_THREADS" in os.environ:
        num_cores = min(num_cores, _threads_from_environment(num_cores))
    return Machine(num_cores, _visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES")))


def assign_devices(
    machine: Machine, num_workers: int, *, cpus_per_worker: float, gpus_per_worker: float
) -> tuple[DeviceShare, ...]:
    """Return the share of each worker. Too few GPUs is an error; too few cores is not, but limits the threads."""
    num_gpus = num_gpus_needed(num_workers, gpus_per_worker)
    assignments = _assign_gpus(machine, num_workers, gpus_per_worker)
    if len(assignments) < num_workers:
        raise ValueError(
            f"ScalingConfig requests {num_gpus} GPU(s) ({num_workers} workers x {gpus_per_worker:g}), "
            f"but {_describe_gpus(machine)}\n\n"
            "hint: lower num_workers, give each worker a fraction with resources_per_worker={'GPU': 0.5}, "
            "or set use_gpu=False"
        )
    requested = int(cpus_per_worker) if cpus_per_worker > 1 else 0
    num_threads = min(requested, machine.num_cores) or max(1, machine.num_cores // max(1, num_workers))
    num_visible = num_gpus if machine.gpu_assignments is None or not num_gpus else len(machine.gpus)
    # A worker without a GPU sees none; one with a GPU sees all GPUs of the run, as collective libraries expect.
    env = {"CUDA_VISIBLE_DEVICES": ",".join(machine.gpus[:num_visible])}
    if "OMP_NUM_THREADS" not in os.environ or system.in_worker:
        env["OMP_NUM_THREADS"] = str(num_threads)
    else:
        num_threads = _threads_from_environment(num_threads)
    return tuple(DeviceShare(num_threads, assignment, env) for assignment in assignments)


def compute_local_capacity(machine: Machine, needs: WorkerResources, least: int, most: int) -> int:
    """Return how many workers fit on this machine. GPUs are a hard limit; cores are one only beyond `least`."""
    by_cores = max(least, int(machine.num_cores // max(needs.num_cpus, 1.0))) if needs.num_cpus else most
    return min(by_cores, len(_assign_gpus(machine, most, needs.num_gpus)), most)


def assign_devices_beside(
    machine: Machine, workers: tuple[DeviceShare, ...], *, num_cpus: float, num_gpus: float
) -> DeviceShare:
    """Return the share of a process beside these workers: GPUs that they leave; a fraction may share one of theirs.

    On a part of a machine it gets the assignment after theirs, if that suffices.
    """
    used = {device for share in workers for device in share.devices}
    count = int(num_gpus) if num_gpus >= 1 else min(1, math.ceil(num_gpus))
    candidates = [device for device in range(len(machine.gpus)) if device not in used]
    if machine.gpu_assignments is not None and len(machine.gpu_assignments) > len(workers):
        candidates = [*machine.gpu_assignments[len(workers)], *candidates]
    if 0 < num_gpus < 1:
        candidates += sorted(used, reverse=True)
    chosen = list(dict.fromkeys(candidates))[:count]
    if len(chosen) < count:
        raise ValueError(
            f"validation_config requests {num_gpus:g} GPU(s) beside the {len(used)} of the workers, "
            f"but {_describe_gpus(machine)}\n\n"
            "hint: lower num_workers, let it share one with num_gpus=0.5, or validate on CPUs"
        )
    fair = max(1, machine.num_cores // (len(workers) + 1))
    num_threads = min(int(num_cpus), machine.num_cores) if num_cpus >= 1 else fair
    env = {
        "CUDA_VISIBLE_DEVICES": ",".join(machine.gpus[device] for device in chosen),
        "OMP_NUM_THREADS": str(num_threads),
    }
    return DeviceShare(num_threads, tuple(range(count)), env)


def num_gpus_needed(num_workers: int, gpus_per_worker: float) -> int:
    if gpus_per_worker >= 1:
        return num_workers * int(gpus_per_worker)
    if gpus_per_worker == 0:
        return 0
    # With 0.3, three workers share one GPU, and a fourth is never split over two.
    return math.ceil(num_workers / (UNIT // to_units(gpus_per_worker)))


def _assign_gpus(machine: Machine, num_workers: int, gpus_per_worker: float) -> list[tuple[int, ...]]:
    """Return the GPUs of each worker, for as many workers as there are GPUs for."""
    if not gpus_per_worker:
        return [()] * num_workers
    if machine.gpu_assignments is not None:
        count = max(1, int(gpus_per_worker))
        # A worker may need fewer GPUs than were reserved for it, for example one that holds all GPUs of its run.
        return [assignment[:count] for assignment in machine.gpu_assignments[:num_workers] if len(assignment) >= count]
    return assign_gpus(len(machine.gpus), gpus_per_worker, num_workers)


def _describe_gpus(machine: Machine) -> str:
    machine_name = "this machine" if machine.gpu_assignments is None else "its part of this machine"
    return f"{machine_name} has {f'{len(machine.gpus)} GPU(s)' if machine.gpus else 'no GPU'}"


def _threads_from_environment(default: int) -> int:
    text = os.environ["OMP_NUM_THREADS"].split(",")[0]
    return int(text) if text.isdigit() and int(text) > 0 else default


def _visible_gpus(visible: str | None) -> tuple[str, ...]:
    present = tuple(str(index) for index in range(count_gpus()))
    if visible is None:
        return present
    # As CUDA parses it: everything from the first invalid entry on is ignored.
    chosen = []
    for name in (part.strip() for part in visible.split(",")):
        if (name.isdigit() and name not in present) or not re.fullmatch(r"\d+|(GPU|MIG)-\S+", name):
            break
        chosen.append(name)
    return tuple(chosen) if present else ()


def count_gpus() -> int:
    """Count GPUs without any library, so that nothing in this process touches CUDA."""
    return sum(1 for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
