"""Where older scripts import `DataParallelTrainer` from."""

from paceline.train.trainer import DataParallelTrainer

__all__ = ["DataParallelTrainer"]
