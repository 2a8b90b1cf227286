"""The functions that a train function called in Ray 1.x: `world_rank()`, `save_checkpoint(**state)` and so on."""

from __future__ import annotations

from typing import Any

from paceline._storage.run_layout import SAVED_PREFIX
from paceline.train import session
from paceline.train.checkpoint import Checkpoint


def world_rank() -> int:
    """The rank of this worker among all workers."""
    return session.get_context().get_world_rank()


def local_rank() -> int:
    """The rank of this worker among those on its machine."""
    return session.get_context().get_local_rank()


def world_size() -> int:
    """The number of workers."""
    return session.get_context().get_world_size()


def save_checkpoint(**state: Any) -> None:
    """Save a checkpoint of these values: tensors, arrays, numbers, strings, lists and dicts. Rank 0's are kept.

    All ranks must call it. Once it returns on any rank, the checkpoint is durable. Numbers among the values can serve
    as `checkpoint_score_attribute`.
    """
    context = session.get_context()
    name = f"{SAVED_PREFIX}{session.num_reports() + 1:06d}"
    scores = {key: value for key, value in state.items() if isinstance(value, int | float | str)}
    # The other ranks pass no files, but they wait for those of rank 0.
    first = context.get_world_rank() == 0
    checkpoint = Checkpoint.from_dict(state) if first else Checkpoint(session.staging_directory())
    session.report(scores, checkpoint=checkpoint, checkpoint_dir_name=name)


def load_checkpoint() -> dict[str, Any] | None:
    """Return the state in the newest checkpoint of this run, or in its initial one; None if there is none."""
    checkpoint = session.get_checkpoint()
    return checkpoint.to_dict() if checkpoint is not None else None
