"""Turns the trainable given to `Tuner` into a plan for its trials."""

from __future__ import annotations

from typing import Any

from paceline.train.trainer import DataParallelTrainer
from paceline.tune.trainables.class_plan import ClassPlan
from paceline.tune.trainables.function_plan import FunctionPlan
from paceline.tune.trainables.trainable import Trainable
from paceline.tune.trainables.trainable_plan import TrainablePlan
from paceline.tune.trainables.trainer_plan import TrainerPlan
from paceline.tune.trainables.wrapping import as_wrapped

_ALLOWED = "a function of the trial's config, a subclass of tune.Trainable, or a trainer such as TorchTrainer(...)"


def make_trainable_plan(trainable: Any) -> TrainablePlan:
    """Return the plan for a trainable; raise for one that cannot be run."""
    wrapped = as_wrapped(trainable)
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
