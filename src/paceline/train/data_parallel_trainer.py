"""The module from which older scripts import `DataParallelTrainer`."""

from paceline.train.trainer import DataParallelTrainer

__all__ = ["DataParallelTrainer"]
