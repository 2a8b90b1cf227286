"""What a trial's worker runs: the function, or an instance of the class, step by step.

Workers import this module; it is preloaded in the process they fork from.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from paceline._core.arguments import is_number
from paceline._core.errors import TrainingFailedError
from paceline._core.time_accounting import CHECKPOINT, account_time
from paceline.train import session as train_session
from paceline.train.backend import BackendConfig
from paceline.train.checkpoint import Checkpoint
from paceline.tune import session
from paceline.tune.result import DEFAULT_METRIC
from paceline.tune.stopper import ThresholdStopper
from paceline.tune.trainables.shared_objects import PickledTrainable, SharedObjectsHandle
from paceline.tune.trainables.trainable import Trainable


class TrialBackendConfig(BackendConfig):
    """Sets up nothing."""

    preload: ClassVar[tuple[str, ...]] = (__name__,)


@dataclass(frozen=True)
class _TrialFunction:
    trainable: Any
    """The function or class itself, or a `PickledTrainable`."""
    handle: SharedObjectsHandle | None

    @property
    def inner_function(self) -> Any:
        return self.trainable.value if isinstance(self.trainable, PickledTrainable) else self.trainable

    @property
    def shown_function(self) -> Any:
        """The original, in the script's own process."""
        return self.trainable.original if isinstance(self.trainable, PickledTrainable) else self.trainable


@dataclass(frozen=True)
class FunctionTrial(_TrialFunction):
    def __call__(self, config: dict[str, Any]) -> Any:
        session.begin_trial()
        objects = self.handle.load() if self.handle is not None else {}
        try:
            result = self.inner_function(config, **objects)
        except TrainingFailedError as error:
            # For a run that the trial itself started, the cause is more useful than the fact that it failed.
            if error.__cause__ is not None:
                error.add_note(f"{type(error.__cause__).__name__}: {error.__cause__}")
            raise
        if inspect.isgenerator(result):
            for metrics in cast(Iterator[dict[str, Any]], result):
                session.report({DEFAULT_METRIC: metrics} if is_number(metrics) else metrics)
            return None
        if (isinstance(result, dict) or is_number(result)) and session.num_reports() == 0:
            session.report(result if isinstance(result, dict) else {DEFAULT_METRIC: result})
        return result


@dataclass(frozen=True)
class TrainableTrial(_TrialFunction):
    saves_by_itself: ClassVar[bool] = True
    frequency: int
    at_end: bool
    stop: Mapping[str, Any] | None = None
    """The metrics at which the search ends a trial: the last step's checkpoint must come with its report."""
    export_formats: tuple[str, ...] = ()

    @property
    def inner_function(self) -> Any:
        return super().inner_function.step

    @property
    def shown_function(self) -> Any:
        return getattr(super().shown_function, "step", None)

    def __call__(self, config: dict[str, Any]) -> None:
        session.begin_trial()
        arguments = {"parameters": self.handle.load()} if self.handle is not None else {}
        trainable: Trainable = super().inner_function(config, **arguments)
        try:
            self._run_steps(trainable)
        except Exception:
            raise
        except BaseException:  # The search stopped the trial at a report: it has ended well.
            self._export(trainable)
            raise
        else:
            self._export(trainable)
        finally:
            trainable.stop()

    def _export(self, trainable: Trainable) -> None:
        if self.export_formats:
            trainable.export_model(list(self.export_formats))

    def _run_steps(self, trainable: Trainable) -> None:
        checkpoint = session.get_checkpoint()
        if checkpoint is not None:
            trainable.restore(checkpoint)
        stopper = ThresholdStopper(self.stop) if self.stop is not None and self.at_end else None
        # A trial that was lost right after its last checkpoint has nothing left to do.
        while not (trainable.is_done and session.num_reports()):
            self._step(trainable, stopper)

    def _step(self, trainable: Trainable, stopper: ThresholdStopper | None) -> None:
        result = dict(trainable.train())
        needs_checkpoint = bool(result.pop("should_checkpoint", False))
        needs_checkpoint |= self.frequency > 0 and trainable.iteration % self.frequency == 0
        needs_checkpoint |= self.at_end and trainable.is_done
        if stopper is not None:
            added = {"training_iteration": trainable.iteration, "time_total_s": trainable.time_total_s}
            needs_checkpoint |= stopper(trainable.trial_id, {**added, **result})
        if needs_checkpoint:
            train_session.report(result, checkpoint=_save_checkpoint(trainable))
        elif can_save(type(trainable)):
            train_session.report(result, checkpoint_on_stop=lambda: _save_checkpoint(trainable))
        else:
            train_session.report(result)


def _save_checkpoint(trainable: Trainable) -> Checkpoint:
    with account_time(CHECKPOINT):
        return trainable.save(train_session.staging_directory())


def can_save(kind: type[Trainable]) -> bool:
    return kind.save_checkpoint is not Trainable.save_checkpoint
