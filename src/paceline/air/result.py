"""Where older scripts import `Result` from."""

from paceline.train.result import Result

__all__ = ["Result"]
