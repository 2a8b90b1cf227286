"""What the worker of a trial runs: the function, or an object of the class, step by step.

Workers import this, and it is imported already where they are forked.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from paceline._core.errors import TrainingFailedError
from paceline._core.spending import CHECKPOINT, spent
from paceline.train import session as train_session
from paceline.train.backend import BackendConfig
from paceline.train.checkpoint import Checkpoint
from paceline.tune import session
from paceline.tune.stoppers.limits import ThresholdStopper
from paceline.tune.trainables.carried import Carried
from paceline.tune.trainables.shared import Handle
from paceline.tune.trainables.trainable import Trainable


class InTrial(BackendConfig):
    """Sets nothing up."""

    preload: ClassVar[tuple[str, ...]] = (__name__,)


@dataclass(frozen=True)
class CallFunction:
    """What the worker of a trial runs."""

    function: Any
    """Itself, or as it was `Carried`."""
    handle: Handle | None = None

    @property
    def inner_function(self) -> Any:
        return self.function.value if isinstance(self.function, Carried) else self.function

    @property
    def shown_function(self) -> Any:
        """As the script has it, in the script's own process."""
        return self.function.original if isinstance(self.function, Carried) else self.function

    def __call__(self, config: dict[str, Any]) -> Any:
        session.begin_trial()
        objects = self.handle.load() if self.handle is not None else {}
        try:
            result = self.inner_function(config, **objects)
        except TrainingFailedError as error:
            # Of a run that the trial itself had started: the reason is more to the point than that it failed.
            if error.__cause__ is not None:
                error.add_note(f"{type(error.__cause__).__name__}: {error.__cause__}")
            raise
        if inspect.isgenerator(result):
            for metrics in cast(Iterator[dict[str, Any]], result):
                session.report(metrics)
            return None
        if isinstance(result, dict) and session.num_reports() == 0:
            session.report(result)
        return result


@dataclass(frozen=True)
class StepTrainable:
    """What the worker of a trial runs."""

    kind: Any
    """The class, or as it was `Carried`."""
    handle: Handle | None
    frequency: int
    at_end: bool
    stop: Mapping[str, Any] | None = None
    """The metrics at which the search ends a trial: a checkpoint of the last step has to come with its report."""

    @property
    def inner_function(self) -> Any:
        return self._class.step

    @property
    def shown_function(self) -> Any:
        """As the script has it, in the script's own process."""
        kind = self.kind.original if isinstance(self.kind, Carried) else self.kind
        return getattr(kind, "step", None)

    @property
    def _class(self) -> type[Trainable]:
        kind: type[Trainable] = self.kind.value if isinstance(self.kind, Carried) else self.kind
        return kind

    def __call__(self, config: dict[str, Any]) -> None:
        session.begin_trial()
        objects = self.handle.load() if self.handle is not None else None
        trainable = self._class(config) if objects is None else self._class(config, parameters=objects)
        try:
            checkpoint = session.get_checkpoint()
            if checkpoint is not None:
                trainable.restore(checkpoint)
            stopper = ThresholdStopper(self.stop) if self.stop is not None and self.at_end else None
            # Of a trial that was lost right after its last checkpoint nothing is left to be done.
            while not (trainable.is_done and session.num_reports()):
                self._step(trainable, stopper)
        finally:
            trainable.stop()

    def _step(self, trainable: Trainable, stopper: ThresholdStopper | None) -> None:
        result = dict(trainable.train())
        wanted = bool(result.pop("should_checkpoint", False))
        wanted |= self.frequency > 0 and trainable.iteration % self.frequency == 0
        wanted |= self.at_end and trainable.is_done
        if stopper is not None:
            added = {"training_iteration": trainable.iteration, "time_total_s": trainable.time_total_s}
            wanted |= stopper(trainable.trial_id, {**added, **result})
        if wanted:
            train_session.report(result, checkpoint=_saved(trainable))
        elif can_save(type(trainable)):
            train_session.report(result, checkpoint_on_stop=lambda: _saved(trainable))
        else:
            train_session.report(result)


def _saved(trainable: Trainable) -> Checkpoint:
    with spent(CHECKPOINT):
        return trainable.save(train_session.staging_directory())


def can_save(kind: type[Trainable]) -> bool:
    return kind.save_checkpoint is not Trainable.save_checkpoint
