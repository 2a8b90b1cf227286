"""Where older scripts import `Checkpoint` from."""

from paceline.train.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
