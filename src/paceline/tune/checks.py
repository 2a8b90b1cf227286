"""Checks that users call: of a trainable before a search, and of a GPU at the start of a trial.

Also found as `paceline.tune.utils`.
"""

from __future__ import annotations

import inspect
import logging
import shutil
import time
from collections.abc import Mapping
from typing import Any, Literal

from paceline._core.arguments import bad_value, check_int, check_number
from paceline._core.lazy_imports import explain_module
from paceline._engine.local.devices import this_machine
from paceline._worker.usage import Nvml
from paceline.train.backend import BackendConfig
from paceline.train.driver.job import pickle_job
from paceline.tune.trainables.trainable import Trainable
from paceline.tune.trainables.wrapping import as_wrapped

__all__ = ["diagnose_serialization", "validate_save_restore", "wait_for_gpu"]

log = logging.getLogger("paceline")


def validate_save_restore(
    trainable_cls: Any, config: Mapping[str, Any] | None = None, num_gpus: int = 0
) -> Literal[True]:
    """Train a `Trainable` class or its registered name in this process, save it, restore it into a second instance.

    Raises if that fails, or if the second does not continue where the first was. `num_gpus` has no effect.
    """
    kind = as_wrapped(trainable_cls).trainable
    if not isinstance(kind, type) or not issubclass(kind, Trainable):
        raise bad_value("trainable_cls", "a subclass of tune.Trainable or its registered name", trainable_cls)
    first, second = kind(config), kind(config)
    try:
        for _ in range(3):
            first.train()
        saved = first.save()
        second.restore(saved)
        if second.iteration != first.iteration:
            raise RuntimeError(
                f"{kind.__name__} was saved at iteration {first.iteration}, restored at {second.iteration}"
            )
        second.train()
        second.restore(saved)
        if second.iteration != first.iteration:
            raise RuntimeError(f"{kind.__name__} cannot be restored after it has trained")
    finally:
        first.stop()
        second.stop()
    shutil.rmtree(saved.path)
    return True


def diagnose_serialization(trainable: Any) -> set[str] | Literal[True]:
    """Whether a trainable can be sent to workers: True, or the names that it uses and that cannot be pickled."""
    function = as_wrapped(trainable).trainable
    if _is_picklable(function):
        return True
    functions = [function]
    if isinstance(function, type):
        functions = [each for each in vars(function).values() if inspect.isfunction(each)]
    used: dict[str, Any] = {}
    for each in filter(inspect.isfunction, functions):
        variables = inspect.getclosurevars(each)
        used |= {**variables.globals, **variables.nonlocals}
    failed = {name for name, value in used.items() if not _is_picklable(value)}
    name = getattr(function, "__name__", type(function).__name__)
    log.warning("%s cannot be pickled: %s", name, ", ".join(sorted(failed)) or "no name it uses says why")
    return failed or {name}


def wait_for_gpu(
    gpu_id: int | str | None = None,
    target_util: float = 0.01,
    retry: int = 20,
    delay_s: float = 5,
    gpu_memory_limit: float | None = None,
) -> Literal[True]:
    """Wait until the memory of a GPU is free but for `target_util`, a fraction; raise after `retry` checks.

    `gpu_id` is an index or a UUID, as `nvidia-smi` has them; by default, the first GPU of this trial.
    """
    if gpu_memory_limit is not None:
        raise ValueError("gpu_memory_limit was removed\n\nhint: use target_util, a fraction of the GPU's memory")
    check_int("retry", retry, at_least=1)
    check_number("target_util", target_util, at_least=0)
    check_number("delay_s", delay_s, at_least=0)
    wanted = str(gpu_id) if gpu_id is not None else next(iter(this_machine().gpus), "0")
    used = 1.0
    for attempt in range(retry):
        if attempt:
            time.sleep(delay_s)
        used = _read_used_memory(wanted)
        if used <= target_util:
            return True
        log.info("waiting for GPU %s: %.0f %% of its memory is in use", wanted, 100 * used)
    raise RuntimeError(
        f"{100 * used:.0f} % of the memory of GPU {wanted} was in use after {retry} checks, {delay_s:g} s apart\n\n"
        "hint: raise retry, delay_s or target_util, or end the process that uses it (nvidia-smi lists it)"
    )


def _read_used_memory(gpu: str) -> float:
    """Return the fraction of a GPU's memory in use."""
    driver = Nvml.open()
    if driver is None:
        raise RuntimeError("wait_for_gpu needs the NVIDIA driver, and there is none")
    usage = driver.use(gpu)
    if usage is None:
        raise bad_value("gpu_id", "a GPU of this machine, by index or UUID", gpu)
    return usage.used_bytes / usage.total_bytes


def _is_picklable(value: Any) -> bool:
    try:
        pickle_job(None, value, BackendConfig())
    except TypeError:
        return False
    return True


explain_module(__name__)
