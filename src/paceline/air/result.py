"""Import location of `Result` for older scripts."""

from paceline.train.result import Result

__all__ = ["Result"]
