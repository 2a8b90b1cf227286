"""What this machine has: cores and GPUs, and how they are shared out to workers."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from paceline._core import system
from paceline._engine.base import Needs


@dataclass(frozen=True)
class Machine:
    num_cores: int
    gpus: tuple[str, ...]
    """As `CUDA_VISIBLE_DEVICES` names them: indices or UUIDs."""
    seats: tuple[tuple[int, ...], ...] | None = None
    """Of a part of a machine, where it is settled who has which: indices among `gpus`, for each process in turn."""


@dataclass(frozen=True)
class Share:
    """What one worker is given."""

    num_threads: int
    devices: tuple[int, ...]
    """Indices among the visible GPUs."""
    env: dict[str, str]


def this_machine() -> Machine:
    """What this process may use. A worker that has a run of its own shares out what it was given itself."""
    num_cores = system.num_cores()
    if system.in_worker and "OMP_NUM_THREADS" in os.environ:
        num_cores = min(num_cores, _threads_from_environment(num_cores))
    return Machine(num_cores, _visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES")))


def shares(machine: Machine, num_workers: int, *, cpus_per_worker: float, gpus_per_worker: float) -> tuple[Share, ...]:
    """What each worker gets. More GPUs than there are is an error; more workers than cores is not."""
    num_gpus = gpus_needed(num_workers, gpus_per_worker)
    seats = _seats(machine, num_workers, gpus_per_worker)
    if len(seats) < num_workers:
        raise ValueError(
            f"ScalingConfig asks for {num_gpus} GPU(s) ({num_workers} workers x {gpus_per_worker:g}), "
            f"and {_has(machine)}\n\n"
            "hint: lower num_workers, give each worker a fraction with resources_per_worker={'GPU': 0.5}, "
            "or set use_gpu=False"
        )
    wanted = int(cpus_per_worker) if cpus_per_worker > 1 else 0
    num_threads = wanted or max(1, machine.num_cores // max(1, num_workers))
    own = num_gpus if machine.seats is None or not num_gpus else len(machine.gpus)
    visible = ",".join(machine.gpus[:own])
    # A worker without a GPU sees none; with one it sees all that the run has, as collective libraries expect.
    env = {"CUDA_VISIBLE_DEVICES": visible}
    if "OMP_NUM_THREADS" not in os.environ or system.in_worker:
        env["OMP_NUM_THREADS"] = str(num_threads)
    else:
        num_threads = _threads_from_environment(num_threads)
    return tuple(Share(num_threads, seat, env) for seat in seats)


def capacity(machine: Machine, needs: Needs, least: int, most: int) -> int:
    """How many workers this machine has room for: strict about GPUs, and about cores beyond the least."""
    by_cores = max(least, int(machine.num_cores // max(needs.num_cpus, 1.0))) if needs.num_cpus else most
    return min(by_cores, len(_seats(machine, most, needs.num_gpus)), most)


def share_beside(machine: Machine, workers: tuple[Share, ...], *, num_cpus: float, num_gpus: float) -> Share:
    """What a process gets that runs beside these workers: GPUs after theirs; of a fraction, one that may be theirs.

    On a part of a machine it has the seat after theirs, where that suffices.
    """
    taken = {device for share in workers for device in share.devices}
    num_taken = len(taken)
    count = int(num_gpus) if num_gpus >= 1 else min(1, math.ceil(num_gpus))
    left = [device for device in range(len(machine.gpus)) if device not in taken]
    if machine.seats is not None and len(machine.seats) > len(workers):
        left = [*machine.seats[len(workers)], *left]
    if 0 < num_gpus < 1:
        left += sorted(taken, reverse=True)
    chosen = list(dict.fromkeys(left))[:count]
    if len(chosen) < count:
        raise ValueError(
            f"validation_config asks for {num_gpus:g} GPU(s) beside the {num_taken} of the workers, "
            f"and {_has(machine)}\n\n"
            "hint: lower num_workers, let it share one with num_gpus=0.5, or validate on CPUs"
        )
    num_threads = int(num_cpus) if num_cpus >= 1 else max(1, machine.num_cores // (len(workers) + 1))
    env = {
        "CUDA_VISIBLE_DEVICES": ",".join(machine.gpus[device] for device in chosen),
        "OMP_NUM_THREADS": str(num_threads),
    }
    return Share(num_threads, tuple(range(count)), env)


def gpus_needed(num_workers: int, gpus_per_worker: float) -> int:
    if gpus_per_worker >= 1:
        return num_workers * int(gpus_per_worker)
    if gpus_per_worker == 0:
        return 0
    return math.ceil(num_workers / _workers_per_gpu(gpus_per_worker))


def _seats(machine: Machine, num_workers: int, gpus_per_worker: float) -> list[tuple[int, ...]]:
    """The GPUs of each worker, for as many of them as there are any for."""
    if machine.seats is None:
        wanted = [_devices(rank, gpus_per_worker) for rank in range(num_workers)]
        return [seat for seat in wanted if not seat or seat[-1] < len(machine.gpus)]
    if not gpus_per_worker:
        return [()] * num_workers
    # A worker may be promised less than was put aside for it, as one that has all of its run's.
    count = max(1, int(gpus_per_worker))
    return [seat[:count] for seat in machine.seats[:num_workers] if len(seat) >= count]


def _has(machine: Machine) -> str:
    what = "this machine" if machine.seats is None else "its part of this machine"
    return f"{what} has {f'{len(machine.gpus)} GPU(s)' if machine.gpus else 'no GPU'}"


def _devices(rank: int, gpus_per_worker: float) -> tuple[int, ...]:
    if gpus_per_worker >= 1:
        count = int(gpus_per_worker)
        return tuple(range(rank * count, (rank + 1) * count))
    if gpus_per_worker == 0:
        return ()
    return (rank // _workers_per_gpu(gpus_per_worker),)


def _workers_per_gpu(fraction: float) -> int:
    """Whole workers that fit on one GPU; 0.3 lets three share, never a fourth on two halves."""
    return int(1 / fraction + 1e-9)


def _threads_from_environment(default: int) -> int:
    text = os.environ["OMP_NUM_THREADS"].split(",")[0]
    return int(text) if text.isdigit() and int(text) > 0 else default


def _visible_gpus(visible: str | None) -> tuple[str, ...]:
    present = tuple(str(index) for index in range(_num_gpus()))
    if visible is None:
        return present
    # As CUDA reads it: everything from the first entry that is no device is ignored.
    chosen = []
    for name in (part.strip() for part in visible.split(",")):
        if name.isdigit() and name not in present:
            break
        if not re.fullmatch(r"\d+|(GPU|MIG)-\S+", name):
            break
        chosen.append(name)
    return tuple(chosen) if present else ()


def _num_gpus() -> int:
    """Counted without any library, so that nothing in this process touches CUDA."""
    return sum(1 for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
