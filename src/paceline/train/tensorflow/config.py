"""The TensorFlow backend: sets `TF_CONFIG`, threads and devices around the user's function."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline._core.settings import override_environment
from paceline.train.backend import BackendConfig

if TYPE_CHECKING:
    from paceline._engine.messages import WorkerInit
    from paceline._worker.context import WorkerContext


@dataclass(frozen=True)
class TensorflowConfig(BackendConfig):
    """Configuration of TensorFlow; it has no options. A strategy finds all workers in `TF_CONFIG`."""

    requires: ClassVar[tuple[str, ...]] = ("tensorflow",)
    extra: ClassVar[str] = "tensorflow"
    # The first one imports TensorFlow.
    preload: ClassVar[tuple[str, ...]] = (
        "paceline.train.tensorflow.quiet_import",
        "paceline.train.tensorflow.checkpoint",
        "paceline.train.tensorflow.cluster",
        "paceline.train.tensorflow.error_notes",
        "paceline.train.tensorflow.keras",
        "paceline.train.tensorflow.signals",
    )
    start_method: ClassVar[str] = "spawn"

    @contextlib.contextmanager
    def around(self, context: WorkerContext) -> Iterator[None]:
        from paceline.train.tensorflow.cluster import exchange_addresses
        from paceline.train.tensorflow.error_notes import explain_error, is_secondary_error
        from paceline.train.tensorflow.quiet_import import tf
        from paceline.train.tensorflow.signals import preserve_signal_handlers

        begin = context.begin
        _set_visible_gpus(begin)
        set_num_threads(begin.num_threads)
        logger = tf.get_logger()
        level = logger.level
        # Hide verbose startup messages; warnings stay.
        logger.setLevel("WARNING")
        with (
            exchange_addresses(context) as workers,
            override_environment(_environment(begin, workers)),
            preserve_signal_handlers(),
        ):
            try:
                yield
            except Exception as error:
                if is_secondary_error(error):
                    context.secondary_error = error
                if note := explain_error(error, begin.world_size):
                    error.add_note(note)
                raise
            finally:
                logger.setLevel(level)


def _environment(begin: WorkerInit, workers: list[str]) -> dict[str, str]:
    task = {"type": "worker", "index": begin.rank}
    hosts = {address.rpartition(":")[0].strip("[]") for address in workers}
    past_proxies = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy") or ""  # noqa: SIM112
    return {
        "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task}),
        # Our own socket holds the worker's port, and the server listens beside it.
        "TF_GRPC_REUSE_PORT": "true",
        # Behind a web proxy, workers would wait for each other forever.
        "no_grpc_proxy": ",".join(filter(None, (past_proxies, *sorted(hosts)))),
        # Otherwise the first worker on a shared GPU takes all of its memory.
        "TF_FORCE_GPU_ALLOW_GROWTH": os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH") or "true",
    }


def _set_visible_gpus(begin: WorkerInit) -> None:
    """Restrict TensorFlow to the GPUs of this worker."""
    import tensorflow as tf

    if not begin.devices:
        return  # The engine already hides all GPUs.
    visible = tf.config.list_physical_devices("GPU")
    if max(begin.devices) >= len(visible):
        raise RuntimeError(
            f"this worker was given GPU {', '.join(map(str, begin.devices))}, and TensorFlow finds {len(visible)}\n\n"
            'hint: pip install "tensorflow[and-cuda]", or set use_gpu=False'
        )
    mine = [visible[index] for index in begin.devices]
    if tf.config.get_visible_devices("GPU") == mine:
        return
    try:
        tf.config.set_visible_devices(mine, "GPU")
    except RuntimeError as error:
        raise RuntimeError(
            "TensorFlow was at work before the train function began, and holds the GPUs of other workers\n\n"
            "hint: make tensors and models inside the train function"
        ) from error


def set_num_threads(num_threads: int) -> None:
    """Set the number of threads; only possible before TensorFlow computes anything."""
    import tensorflow as tf

    threads = tf.config.threading
    if threads.get_intra_op_parallelism_threads() == num_threads:
        return
    try:
        threads.set_intra_op_parallelism_threads(num_threads)
        # At least two: one to wait in a collective, one for other work.
        threads.set_inter_op_parallelism_threads(max(2, num_threads))
    except RuntimeError:
        # Tensors pickled with the function have already started TensorFlow. It still works, with one thread per core.
        return
