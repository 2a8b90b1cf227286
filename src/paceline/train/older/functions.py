"""What a train function called in Ray 1.x: `world_rank()`, `save_checkpoint(**state)`, `load_checkpoint()`."""

from __future__ import annotations

from typing import Any

from paceline._storage.layout import SAVED
from paceline.train import session
from paceline.train.checkpoint import Checkpoint


def world_rank() -> int:
    """The number of this worker among all."""
    return session.get_context().get_world_rank()


def local_rank() -> int:
    """The number of this worker among those on its machine."""
    return session.get_context().get_local_rank()


def world_size() -> int:
    """How many workers there are."""
    return session.get_context().get_world_size()


def save_checkpoint(**state: Any) -> None:
    """Save a checkpoint of these values: tensors, arrays, numbers, strings, lists and dicts. Rank 0's are kept.

    All ranks have to call it, and when it returns, on whichever, it is durable. Numbers among the values can be a
    `checkpoint_score_attribute`.
    """
    context = session.get_context()
    name = f"{SAVED}{session.num_reports() + 1:06d}"
    scores = {key: value for key, value in state.items() if isinstance(value, int | float | str)}
    # The others bring no files, and wait for those of rank 0 all the same.
    first = context.get_world_rank() == 0
    checkpoint = Checkpoint.from_dict(state) if first else Checkpoint(session.staging_directory())
    session.report(scores, checkpoint=checkpoint, checkpoint_dir_name=name)


def load_checkpoint() -> dict[str, Any] | None:
    """What the newest checkpoint of this run, or the one that it was given, holds; None where there is none."""
    checkpoint = session.get_checkpoint()
    return checkpoint.to_dict() if checkpoint is not None else None
