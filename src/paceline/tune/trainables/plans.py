"""From what a user gives to `Tuner` to what its trials run."""

from __future__ import annotations

from typing import Any

from paceline.train.trainer import DataParallelTrainer
from paceline.tune.trainables.classes import ClassPlan
from paceline.tune.trainables.functions import FunctionPlan
from paceline.tune.trainables.planned import Planned
from paceline.tune.trainables.trainable import Trainable
from paceline.tune.trainables.trainers import TrainerPlan
from paceline.tune.trainables.wrapped import unwrapped

_ALLOWED = "a function of the trial's config, a subclass of tune.Trainable, or a trainer such as TorchTrainer(...)"


def planned(trainable: Any) -> Planned:
    """What a search over this runs for each of its trials; what cannot be run is refused."""
    wrapped = unwrapped(trainable)
    given = wrapped.trainable
    if isinstance(given, DataParallelTrainer):
        return TrainerPlan(given)
    if isinstance(given, type):
        if issubclass(given, Trainable) and given is not Trainable:
            return ClassPlan(wrapped)
        if issubclass(given, DataParallelTrainer):
            raise ValueError(
                f"trainable={given.__name__} is a class of trainers: give an object of it, with its function"
            )
    elif callable(given):
        return FunctionPlan(wrapped)
    raise ValueError(f"trainable={given!r} is nothing that a trial could run: give {_ALLOWED}")
