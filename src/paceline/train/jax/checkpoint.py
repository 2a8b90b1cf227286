"""OrbaxCheckpoint: a tree of arrays in Orbax's format, each process writing the shards that it holds.

Orbax has all processes write into one directory. That is one of rank 0, which alone reports it, once all have written;
the others bring no files. A tree of which every worker has the whole is written by rank 0 alone.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

from paceline._core import system
from paceline._worker import context as worker_context
from paceline._worker.context import Context
from paceline.train.backend import require
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import staging_directory


class OrbaxCheckpoint(Checkpoint):
    """A checkpoint that holds one tree of arrays and numbers: parameters, optimizer state, step.

        train.report(metrics, checkpoint=OrbaxCheckpoint.from_pytree(state))
        state = OrbaxCheckpoint.from_checkpoint(train.get_checkpoint()).get_pytree(like=state)

    In a worker the arrays are copied when it is made and written in the background: `report` with
    `CheckpointUploadMode.ASYNC` does not wait for it. After the report read it from `get_checkpoint()`, not from this
    object.
    """

    DIRECTORY: ClassVar[str] = "pytree"
    """Where the tree lies in the checkpoint, for code that reads it with Orbax itself."""

    _writing: _Writing | None = None

    @classmethod
    def from_pytree(cls, tree: Any) -> Self:
        """The tree as it is now. Where an array is spread over the workers, all of them have to call this.

        Of what is whole on each worker, such as numbers and replicated arrays, the values of rank 0 are kept.
        """
        require(cls.__name__, ("jax", "orbax.checkpoint"), "jax")
        import jax

        context = worker_context.current()
        rank = context.begin.rank if context is not None else 0
        checkpoint = cls.from_directory(_new_directory(context))
        if context is None:
            weakref.finalize(checkpoint, shutil.rmtree, checkpoint.path, ignore_errors=True)
        directory = Path(checkpoint.path)
        tree = jax.tree.map_with_path(_storable, tree)
        if context is not None and any(map(_is_spread, jax.tree.leaves(tree))):
            checkpoint._writing = _Writing.begun(_shared(context, directory) / cls.DIRECTORY, tree, everybody=True)
        elif not system.in_worker:
            _write(directory / cls.DIRECTORY, tree)
        elif rank == 0:
            checkpoint._writing = _Writing.begun(directory / cls.DIRECTORY, tree, everybody=False)
        return checkpoint

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Self:
        """A checkpoint that a run gave back, such as `get_checkpoint()` or `result.checkpoint`, as one of this kind."""
        if not isinstance(checkpoint, Checkpoint):
            raise TypeError(f"checkpoint={checkpoint!r} is not a paceline.train.Checkpoint")
        return cls(checkpoint.path, checkpoint._filesystem)

    def get_pytree(self, like: Any = None) -> Any:
        """The tree. No worker waits for another here.

        `like` is a tree of the same form, of arrays or `jax.ShapeDtypeStruct`: each array gets the type and the
        sharding that it has there, which may be others than it was saved with, on another number of workers too.
        Without it, arrays are NumPy's, whole on each worker, and named tuples come as dicts.
        """
        require(type(self).__name__, ("jax", "orbax.checkpoint"), "jax")
        import jax
        import orbax.checkpoint as ocp

        options = _alone()
        with self.as_directory() as directory:
            path = Path(directory) / self.DIRECTORY
            if not path.is_dir():
                raise ValueError(
                    f"{self} was not made by OrbaxCheckpoint.from_pytree: it has no directory {self.DIRECTORY!r}\n\n"
                    "hint: read its files with as_directory(), or to_dict() if Checkpoint.from_dict made it"
                )
            handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=options)
            with ocp.Checkpointer(handler, multiprocessing_options=options) as reader:
                stored = reader.metadata(path).item_metadata.tree
                if like is not None:
                    _check_form(like, stored)
                wanted = jax.tree.map(_restored_as, stored if like is None else like)
                return reader.restore(path, args=ocp.args.PyTreeRestore(item=like, restore_args=wanted))

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        self._complete()
        with super().as_directory() as directory:
            yield directory

    def to_directory(self, path: Any = None) -> str:
        self._complete()
        return super().to_directory(path)

    def __getstate__(self) -> dict[str, Any]:
        """In another process it is read, so it has to be whole."""
        self._complete()
        return {name: value for name, value in vars(self).items() if name != "_writing"}

    def _complete(self) -> None:
        if self._writing is not None:
            self._writing.wait()


def _write(path: Path, tree: Any) -> None:
    """In a script: at once, since what writes in the background would keep threads for as long as the process lasts."""
    import orbax.checkpoint as ocp

    options = _alone()
    with ocp.Checkpointer(
        ocp.PyTreeCheckpointHandler(multiprocessing_options=options), multiprocessing_options=options
    ) as writer:
        writer.save(path, args=ocp.args.PyTreeSave(tree))


class _Writing:
    """A tree that is being written. One at a time in a process: the next one waits for it, so memory stays bounded."""

    _latest: ClassVar[_Writing | None] = None
    _checkpointers: ClassVar[dict[bool, Any]] = {}
    """Of this process: one to write with all others together, and one to write alone."""

    def __init__(self, checkpointer: Any) -> None:
        self._checkpointer = checkpointer
        self._lock = (
            threading.Lock()
        )  # protects all below: it is waited for by the user's thread and the one that uploads
        self._ended = False
        self._error: Exception | None = None

    @classmethod
    def begun(cls, path: Path, tree: Any, *, everybody: bool) -> _Writing:
        """Returns once the arrays are copied. Where everybody writes, all processes have to come here."""
        import orbax.checkpoint as ocp

        if cls._latest is not None:
            cls._latest._end()
        if everybody not in cls._checkpointers:
            options = ocp.options.MultiprocessingOptions() if everybody else _alone()
            handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=options)
            cls._checkpointers[everybody] = ocp.AsyncCheckpointer(handler, multiprocessing_options=options)
        checkpointer = cls._checkpointers[everybody]
        checkpointer.save(path, args=ocp.args.PyTreeSave(tree))
        cls._latest = cls(checkpointer)
        return cls._latest

    def wait(self) -> None:
        """Until all that is to be written, by whomever, is; raises what went wrong."""
        self._end()
        if self._error is not None:
            raise self._error

    def _end(self) -> None:
        """Wait, and keep what went wrong for whoever reports this one."""
        with self._lock:
            if self._ended:
                return
            try:
                self._checkpointer.wait_until_finished()
            except Exception as error:  # noqa: BLE001  raised by `wait`
                self._error = error
            self._ended = True


def _alone() -> Any:
    """Options that let this process read or write without the others."""
    import jax
    import orbax.checkpoint as ocp

    me = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"paceline_{me}"
    )


def _new_directory(context: Context | None) -> Path:
    return staging_directory() if context is not None else Path(tempfile.mkdtemp(prefix="paceline-checkpoint-"))


def _shared(context: Context, directory: Path) -> Path:
    """The directory of rank 0, known to all; refused where a worker does not see it."""
    told = Path(context.join(str(directory).encode()).decode())
    if not told.is_dir():
        raise RuntimeError(
            f"rank {context.begin.rank} on {socket.gethostname()} does not see {told}, a directory that rank 0 made: "
            "arrays that are spread over the workers are written by all of them into one directory\n\n"
            "hint: use a storage_path that is mounted on all machines, or gather the arrays first with "
            "jax.experimental.multihost_utils.process_allgather(tree, tiled=True)"
        )
    return told


def _is_spread(leaf: Any) -> bool:
    """Whether no process has all of it."""
    import jax

    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated


def _storable(path: Any, leaf: Any) -> Any:
    """Among many processes Orbax takes arrays that span all of them, and NumPy's: those it has process 0 write."""
    import jax
    import numpy as np

    if not isinstance(leaf, jax.Array):
        return leaf
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise TypeError(
            f"tree{jax.tree_util.keystr(path)} has dtype {leaf.dtype}, which only JAX has\n\n"
            "hint: of a random key store jax.random.key_data(key), and make it one again with jax.random.wrap_key_data"
        )
    return leaf if jax.process_count() == 1 or _is_spread(leaf) else np.array(leaf)


def _check_form(like: Any, stored: Any) -> None:
    """Refuse a tree of another form here: Orbax would tell of it at length, or take NumPy's arrays of any shape."""
    ours, theirs = _shapes(like), _shapes(stored)
    problems = [f"it has no {name}, which the checkpoint has" for name in theirs.keys() - ours.keys()]
    problems += [f"it has {name}, which the checkpoint does not have" for name in ours.keys() - theirs.keys()]
    problems += [
        f"{name} has the shape {ours[name]}, and {theirs[name]} in the checkpoint"
        for name in ours.keys() & theirs.keys()
        if ours[name] != theirs[name]
    ]
    if problems:
        more = f", and {len(problems) - 3} more like these" if len(problems) > 3 else ""
        raise ValueError(
            f"like is not of the form of the checkpoint: {'; '.join(sorted(problems)[:3])}{more}\n\n"
            "hint: get_pytree() without it gives the whole tree as it was saved"
        )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    import jax

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): tuple(getattr(leaf, "shape", None) or ())
        for path, leaf in leaves
    }


def _restored_as(leaf: Any) -> Any:
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
    # `like` says which type; what Orbax tells of a checkpoint is of the type that it was saved with.
    dtype = leaf.dtype if isinstance(leaf, np.ndarray | jax.ShapeDtypeStruct) else None
    return ocp.RestoreArgs(restore_type=np.ndarray, dtype=dtype)
