"""Import location of `Checkpoint` for older scripts."""

from paceline.train.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
