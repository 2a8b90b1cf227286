"""OrbaxCheckpoint: a tree of arrays in Orbax's format, where each process writes its own shards.

Orbax has all processes write into one directory. It belongs to rank 0, which alone reports it once all have written;
the other ranks contribute no files. A tree that every worker holds completely is written by rank 0 alone.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

from paceline._core import system
from paceline._worker import context as worker_context
from paceline._worker.context import WorkerContext
from paceline.train.backend import require
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import new_checkpoint


class OrbaxCheckpoint(Checkpoint):
    """A checkpoint that holds one tree of arrays and numbers: parameters, optimizer state, step.

        train.report(metrics, checkpoint=OrbaxCheckpoint.from_pytree(state))
        state = OrbaxCheckpoint.from_checkpoint(train.get_checkpoint()).get_pytree(like=state)

    In a worker, the arrays are copied at once and written in the background: `report` with `CheckpointUploadMode.ASYNC`
    does not wait for it. After the report, read the checkpoint from `get_checkpoint()`, not from this object.
    """

    DIRECTORY: ClassVar[str] = "pytree"
    """Directory of the tree within the checkpoint, for code that reads it with Orbax."""

    _write_in_progress: _TreeWrite | None = None

    @classmethod
    def from_pytree(cls, tree: Any) -> Self:
        """Save the current state of a tree. If an array is spread over workers, all of them must call this.

        For values that are complete on each worker, such as numbers and replicated arrays, those of rank 0 are saved.
        """
        require(cls.__name__, ("jax", "orbax.checkpoint"), "jax")
        import jax

        context = worker_context.current()
        checkpoint = new_checkpoint(cls)
        path = Path(checkpoint.path)
        if context is not None and any(map(_is_sharded, jax.tree.leaves(tree))):
            checkpoint._write_in_progress = _TreeWrite.start_write(
                _share_directory(context, path) / cls.DIRECTORY, tree, all_processes=True
            )
            return checkpoint
        if context is not None and context.begin.rank != 0:
            return checkpoint
        if system.in_worker:
            checkpoint._write_in_progress = _TreeWrite.start_write(path / cls.DIRECTORY, tree, all_processes=False)
        else:
            # In a script, a background writer would keep its threads until the process exits.
            import orbax.checkpoint as ocp

            with _make_checkpointer(ocp.Checkpointer, _single_process_options()) as writer:
                writer.save(path / cls.DIRECTORY, args=_make_save_args(tree))
        return checkpoint

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Self:
        """Convert a checkpoint of a run, such as `get_checkpoint()` or `result.checkpoint`, to this class."""
        if not isinstance(checkpoint, Checkpoint):
            raise TypeError(f"checkpoint must be a paceline.train.Checkpoint, got {checkpoint!r}")
        return cls(checkpoint.path, checkpoint._filesystem)

    def get_pytree(self, like: Any = None) -> Any:
        """Load the tree. Workers do not wait for each other.

        `like` is a tree of the same structure, with arrays or `jax.ShapeDtypeStruct`: each array gets the type and
        sharding it has there, which may differ from how it was saved, also in the number of workers. Without it, arrays
        are NumPy arrays, complete on each worker, and named tuples become dicts.
        """
        require(type(self).__name__, ("jax", "orbax.checkpoint"), "jax")
        import jax
        import orbax.checkpoint as ocp

        with self.as_directory() as directory:
            path = Path(directory) / self.DIRECTORY
            if not path.is_dir():
                raise ValueError(
                    f"{self} is not an OrbaxCheckpoint: it has no directory {self.DIRECTORY!r}\n\n"
                    "hint: read its files with as_directory(), or with to_dict() if Checkpoint.from_dict created it"
                )
            with _make_checkpointer(ocp.Checkpointer, _single_process_options()) as reader:
                stored = reader.metadata(path).item_metadata.tree
                if like is not None:
                    _check_same_structure(like, stored)
                restore_args = jax.tree.map(_make_restore_args, stored if like is None else like)
                return reader.restore(path, args=ocp.args.PyTreeRestore(item=like, restore_args=restore_args))

    @contextlib.contextmanager
    def as_directory(self, *, verify: bool = True) -> Iterator[str]:
        self._wait_until_complete()
        with super().as_directory(verify=verify) as directory:
            yield directory

    def to_directory(self, path: Any = None, *, verify: bool = True) -> str:
        self._wait_until_complete()
        return super().to_directory(path, verify=verify)

    def __getstate__(self) -> dict[str, Any]:
        """Wait for the write, because another process will read the files."""
        self._wait_until_complete()
        return {name: value for name, value in vars(self).items() if name != "_write_in_progress"}

    def _wait_until_complete(self) -> None:
        if self._write_in_progress is not None:
            self._write_in_progress.wait()


class _TreeWrite:
    """A tree being written. A process writes one at a time and the next waits for it, so memory stays bounded."""

    _latest: ClassVar[_TreeWrite | None] = None
    _checkpointers: ClassVar[dict[bool, Any]] = {}
    """Per process: one to write together with all processes (True), one to write alone (False)."""

    def __init__(self, checkpointer: Any) -> None:
        self._checkpointer = checkpointer
        # Protects the fields below: both the user's thread and the upload thread wait for the write.
        self._lock = threading.Lock()
        self._ended = False
        self._error: Exception | None = None

    @classmethod
    def start_write(cls, path: Path, tree: Any, *, all_processes: bool) -> _TreeWrite:
        """Start writing; returns once the arrays are copied. With `all_processes`, all processes must call this."""
        import orbax.checkpoint as ocp

        if cls._latest is not None:
            cls._latest._wait_for_end()
        if all_processes not in cls._checkpointers:
            options = ocp.options.MultiprocessingOptions() if all_processes else _single_process_options()
            cls._checkpointers[all_processes] = _make_checkpointer(ocp.AsyncCheckpointer, options)
        checkpointer = cls._checkpointers[all_processes]
        checkpointer.save(path, args=_make_save_args(tree))
        cls._latest = cls(checkpointer)
        return cls._latest

    def wait(self) -> None:
        """Wait until all processes have written; raises if writing failed."""
        self._wait_for_end()
        if self._error is not None:
            raise self._error

    def _wait_for_end(self) -> None:
        """Wait, and keep the error for the report of this checkpoint."""
        with self._lock:
            if self._ended:
                return
            try:
                self._checkpointer.wait_until_finished()
            except Exception as error:  # noqa: BLE001
                self._error = error
            self._ended = True


def _make_checkpointer(cls: Any, options: Any) -> Any:
    import orbax.checkpoint as ocp

    return cls(ocp.PyTreeCheckpointHandler(multiprocessing_options=options), multiprocessing_options=options)


def _single_process_options() -> Any:
    import jax
    import orbax.checkpoint as ocp

    me = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"paceline_{me}"
    )


def _share_directory(context: WorkerContext, directory: Path) -> Path:
    """Return rank 0's directory on all ranks. Raises if this worker cannot see it."""
    shared = Path(context.join(str(directory).encode()).decode())
    if not shared.is_dir():
        raise RuntimeError(
            f"rank {context.begin.rank} on {socket.gethostname()} cannot access {shared} of rank 0: all workers write "
            "their shards of an array into one directory\n\n"
            "hint: use a storage_path that is mounted on all machines, or gather the arrays first with "
            "jax.experimental.multihost_utils.process_allgather(tree, tiled=True)"
        )
    return shared


def _is_sharded(leaf: Any) -> bool:
    """Return whether no process holds the whole array."""
    import jax

    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated


def _make_save_args(tree: Any) -> Any:
    import jax
    import orbax.checkpoint as ocp

    return ocp.args.PyTreeSave(jax.tree.map_with_path(_to_storable, tree))


def _to_storable(path: Any, leaf: Any) -> Any:
    """With several processes, Orbax takes arrays that span all of them, and NumPy arrays, which process 0 writes."""
    import jax
    import numpy as np

    if isinstance(leaf, np.ndarray):
        return leaf.copy()  # NumPy arrays may change while they are written; JAX arrays cannot.
    if not isinstance(leaf, jax.Array):
        return leaf
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise TypeError(
            f"cannot store tree{jax.tree_util.keystr(path)}: only JAX has the dtype {leaf.dtype}\n\n"
            "hint: store a random key as jax.random.key_data(key), and restore it with jax.random.wrap_key_data"
        )
    return leaf if jax.process_count() == 1 or _is_sharded(leaf) else np.array(leaf)


def _check_same_structure(like: Any, stored: Any) -> None:
    """Reject a different structure here: Orbax's error is long, and it accepts NumPy arrays of any shape."""
    ours, theirs = _shapes_by_name(like), _shapes_by_name(stored)
    problems = [f"like lacks {name}" for name in theirs.keys() - ours.keys()]
    problems += [f"the checkpoint lacks {name}" for name in ours.keys() - theirs.keys()]
    problems += [
        f"{name} has shape {ours[name]}, but {theirs[name]} in the checkpoint"
        for name in ours.keys() & theirs.keys()
        if ours[name] != theirs[name]
    ]
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ValueError(
            f"like does not match the checkpoint: {'; '.join(sorted(problems)[:3])}{more}\n\n"
            "hint: get_pytree() without like returns the whole tree as it was saved"
        )


def _shapes_by_name(tree: Any) -> dict[str, tuple[int, ...]]:
    import jax

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): tuple(getattr(leaf, "shape", None) or ())
        for path, leaf in leaves
    }


def _make_restore_args(leaf: Any) -> Any:
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    sharding = getattr(leaf, "sharding", None)
    if isinstance(sharding, jax.sharding.Sharding):
        return ocp.ArrayRestoreArgs(
            restore_type=jax.Array, dtype=leaf.dtype, sharding=sharding, global_shape=tuple(leaf.shape)
        )
    if isinstance(leaf, bool | int | float | str):
        return ocp.RestoreArgs(restore_type=type(leaf))
    if isinstance(leaf, ocp.metadata.ScalarMetadata | ocp.metadata.StringMetadata):
        return ocp.RestoreArgs()
    # `like` determines the type; the metadata of a checkpoint has the type it was saved with.
    dtype = leaf.dtype if isinstance(leaf, np.ndarray | jax.ShapeDtypeStruct) else None
    return ocp.RestoreArgs(restore_type=np.ndarray, dtype=dtype)
