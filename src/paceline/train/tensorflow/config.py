"""The TensorFlow backend: sets `TF_CONFIG`, threads, devices and signal handlers around the user's function.

Workers exchange the addresses of their servers before any server starts. Each holds a port chosen by the system while
its function runs. Its server listens on the same port, which `SO_REUSEPORT` allows only for sockets of the same user.
Also here: notes for errors that TensorFlow does not explain, and `prepare_dataset_shard`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

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
        "paceline.train.tensorflow.config",
        "paceline.train.tensorflow.keras",
    )
    start_method: ClassVar[str] = "spawn"

    @contextlib.contextmanager
    def around(self, context: WorkerContext) -> Iterator[None]:
        from paceline.train.tensorflow.quiet_import import tf

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
    import tensorflow as tf

    if not begin.devices:
        return  # The engine already hides all GPUs.
    visible = tf.config.list_physical_devices("GPU")
    if max(begin.devices) >= len(visible):
        raise RuntimeError(
            f"this worker has GPU {', '.join(map(str, begin.devices))}, but TensorFlow finds {len(visible)}\n\n"
            'hint: pip install "tensorflow[and-cuda]", or set use_gpu=False'
        )
    mine = [visible[index] for index in begin.devices]
    if tf.config.get_visible_devices("GPU") == mine:
        return
    try:
        tf.config.set_visible_devices(mine, "GPU")
    except RuntimeError as error:
        raise RuntimeError(
            "TensorFlow started before the train function and holds the GPUs of other workers\n\n"
            "hint: create tensors and models inside the train function"
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


@contextlib.contextmanager
def exchange_addresses(context: WorkerContext) -> Iterator[list[str]]:
    """Yield the server address of each rank, in rank order, while holding this rank's port."""
    begin = context.begin
    host = begin.node_address if begin.num_nodes > 1 else "127.0.0.1"
    with socket.socket() as holder:
        # Only this user can listen on the port too, and the system gives it to nobody else. It accepts no connections.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("", 0))
        port = holder.getsockname()[1]
        mine = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        yield [address.decode() for address in context.gather(mine.encode())]


@contextlib.contextmanager
def preserve_signal_handlers() -> Iterator[None]:
    """Restore the SIGTERM handler after a multi-worker strategy is created.

    TensorFlow's server installs a handler below Python's that neither ends the process nor notifies us, so preemption
    notices would be lost.
    """
    import tensorflow as tf

    strategy: Any = tf.distribute.MultiWorkerMirroredStrategy
    init = strategy.__init__

    @functools.wraps(init)
    def init_preserving_handlers(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)

    strategy.__init__ = init_preserving_handlers
    try:
        yield
    finally:
        strategy.__init__ = init


_KERAS_3 = "/keras/src/"
"""Path of the files of Keras 3, not of `tf_keras`."""

KERAS_HINT = (
    "hint: fit() of Keras 3 does not work under MultiWorkerMirroredStrategy with several workers, that of tf_keras "
    'does: pip install tf_keras and set os.environ["TF_USE_LEGACY_KERAS"] = "1" before tensorflow is imported, '
    "or train with strategy.run"
)


def is_secondary_error(error: BaseException) -> bool:
    """Return whether the failure of another worker caused it: an aborted collective or an unavailable server."""
    import tensorflow as tf

    kinds = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    return isinstance(error, kinds) and any(sign in str(error) for sign in ("Collective ops is aborted", "/job:worker"))


def explain_error(error: BaseException, world_size: int) -> str | None:
    """Return a note to add: the reason below a generic heading, or a hint about Keras 3."""
    text = str(error)
    frames: Any = traceback.walk_tb(error.__traceback__)
    if world_size > 1 and "replica" in text.lower() and any(_KERAS_3 in f.f_code.co_filename for f, _ in frames):
        return KERAS_HINT
    return extract_reason(text)


def extract_reason(text: str) -> str | None:
    """Return the reason from a `tf.function` error, which starts with a heading and node locations."""
    heading, _, rest = text.partition("\n")
    if heading.strip() != "Graph execution error:":
        return None
    *_, last = rest.split("[[{{node")[0].rstrip().split("\n\n")
    return next((line.strip() for line in last.splitlines() if line.strip()), None)


def prepare_dataset_shard(tf_dataset_shard: Any) -> Any:
    """Disable automatic sharding and prefetch batches.

    For datasets from `get_dataset_shard(...).to_tf(...)`, which a strategy would otherwise shard again.
    """
    import tensorflow as tf

    if not isinstance(tf_dataset_shard, tf.data.Dataset):
        raise TypeError(
            f"tf_dataset_shard must be a tf.data.Dataset, got {tf_dataset_shard!r:.200}\n\n"
            "hint: get_dataset_shard(...).to_tf(feature_columns, label_columns) returns one"
        )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf_dataset_shard.with_options(options).prefetch(tf.data.AUTOTUNE)
