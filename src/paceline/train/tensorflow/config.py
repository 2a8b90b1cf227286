"""The TensorFlow backend: `TF_CONFIG` around the user's function, threads and devices set."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from paceline._core.settings import variables_set
from paceline.train.backend import BackendConfig

if TYPE_CHECKING:
    from paceline._engine.messages import Begin
    from paceline._worker.context import Context


@dataclass(frozen=True)
class TensorflowConfig(BackendConfig):
    """Nothing to choose: the strategy that a train function makes finds all workers in `TF_CONFIG`."""

    requires: ClassVar[tuple[str, ...]] = ("tensorflow",)
    extra: ClassVar[str] = "tensorflow"
    # The first one imports TensorFlow itself.
    preload: ClassVar[tuple[str, ...]] = (
        "paceline.train.tensorflow.quiet",
        "paceline.train.tensorflow.checkpoint",
        "paceline.train.tensorflow.cluster",
        "paceline.train.tensorflow.explained",
        "paceline.train.tensorflow.keras",
        "paceline.train.tensorflow.signals",
    )
    start_method: ClassVar[str] = "spawn"

    @contextlib.contextmanager
    def around(self, context: Context) -> Iterator[None]:
        from paceline.train.tensorflow.cluster import addresses
        from paceline.train.tensorflow.explained import is_echo, note_on
        from paceline.train.tensorflow.quiet import tf
        from paceline.train.tensorflow.signals import signals_kept

        begin = context.begin
        _give_gpus(begin)
        give_threads(begin.num_threads)
        logger = tf.get_logger()
        level = logger.level
        # It says at length how it sets out; its warnings stay.
        logger.setLevel("WARNING")
        with addresses(context) as workers, variables_set(_environment(begin, workers)), signals_kept():
            try:
                yield
            except Exception as error:
                if is_echo(error):
                    context.echo = error
                if note := note_on(error, begin.world_size):
                    error.add_note(note)
                raise
            finally:
                logger.setLevel(level)


def _environment(begin: Begin, workers: list[str]) -> dict[str, str]:
    task = {"type": "worker", "index": begin.rank}
    hosts = {address.rpartition(":")[0].strip("[]") for address in workers}
    past_proxies = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy") or ""  # noqa: SIM112
    return {
        "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task}),
        # The port of this worker is held by a socket of ours, beside which the server is to listen.
        "TF_GRPC_REUSE_PORT": "true",
        # Behind a proxy for the web the workers would wait for each other without end.
        "no_grpc_proxy": ",".join(filter(None, (past_proxies, *sorted(hosts)))),
        # Else the first of the workers that share a GPU takes all of its memory.
        "TF_FORCE_GPU_ALLOW_GROWTH": os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH") or "true",
    }


def _give_gpus(begin: Begin) -> None:
    """Let TensorFlow see the GPUs of this worker, and no other."""
    import tensorflow as tf

    if not begin.devices:
        return  # The engine lets this worker see none.
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


def give_threads(num_threads: int) -> None:
    """Let TensorFlow compute with so many; it has to be said before it computes anything."""
    import tensorflow as tf

    threads = tf.config.threading
    if threads.get_intra_op_parallelism_threads() == num_threads:
        return
    try:
        threads.set_intra_op_parallelism_threads(num_threads)
        # Two at least: one for what a collective waits with, one for what goes on meanwhile.
        threads.set_inter_op_parallelism_threads(max(2, num_threads))
    except RuntimeError:
        # Tensors that came with the function have started it. It works so too, with as many threads as there are cores.
        return
