"""A tree model in a checkpoint, and what a report callback reports after each boosting round.

`ModelCheckpoint` holds one file in the library's own format, which contains no code. `ReportPlan` decides which metrics
are reported under which names, and whether with a checkpoint; it is pure. `TreeReportCallback` writes the model and
reports: every rank reports, but only rank 0 contributes the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from paceline._core.arguments import check_callable, check_file_name, check_int, parse_metric_names
from paceline._core.time_accounting import CHECKPOINT, account_time
from paceline.train.backend import require
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import get_context, new_checkpoint, report, staging_directory

if TYPE_CHECKING:
    from paceline.data.preprocessor import Preprocessor


class ModelCheckpoint(Checkpoint):
    """A checkpoint with a single model file. Subclasses define how a library writes and reads it."""

    MODEL_FILENAME: ClassVar[str]

    @classmethod
    def from_model(
        cls,
        booster: Any,
        *,
        preprocessor: Preprocessor | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Write a model, into the directory `path` if given.

        Otherwise, in a worker the file is created on the run's storage, and `report` moves it into place; elsewhere it
        is a temporary file that is deleted with this object.
        """
        checkpoint = new_checkpoint(cls) if path is None else cls.from_directory(path)
        directory = Path(checkpoint.path)
        directory.mkdir(parents=True, exist_ok=True)
        cls._write(booster, directory / cls.MODEL_FILENAME)
        if preprocessor is not None:
            checkpoint.set_preprocessor(preprocessor)
        return checkpoint

    def get_model(self) -> Any:
        """Load the model."""
        return type(self)._read_from(self, self.MODEL_FILENAME)

    @classmethod
    def _read_from(cls, checkpoint: Checkpoint, filename: str) -> Any:
        if not isinstance(checkpoint, Checkpoint):
            raise TypeError(
                f"checkpoint must be a paceline.train.Checkpoint, got {checkpoint!r}\n\n"
                "hint: without one, before the first report: model = get_model(checkpoint) if checkpoint else None"
            )
        with checkpoint.as_directory() as directory:
            file = Path(directory) / filename
            if not file.is_file():
                names = ", ".join(sorted(path.name for path in Path(directory).iterdir() if path.name[0] != "."))
                raise FileNotFoundError(
                    f"{checkpoint} has no file {filename!r}; the files are {names or 'none'}\n\n"
                    "hint: pass the filename of the report callback: get_model(checkpoint, filename=...)"
                )
            return cls._read(file)

    @staticmethod
    def _write(booster: Any, file: Path) -> None:
        raise NotImplementedError

    @staticmethod
    def _read(file: Path) -> Any:
        raise NotImplementedError


Values = dict[str, Any]
PostProcess = Callable[[Values], Values]


@dataclass(frozen=True)
class ReportPlan:
    """Which metrics to report after a round, and after which rounds to save the model."""

    metrics: Mapping[str, str] | None
    """Reported name -> the library's name; None reports all."""
    filename: str
    frequency: int
    checkpoint_at_end: bool
    results_postprocessing_fn: PostProcess | None = None

    def __post_init__(self) -> None:
        check_file_name("filename", self.filename)
        check_int("frequency", self.frequency, at_least=0)
        check_callable("results_postprocessing_fn", self.results_postprocessing_fn, optional=True)

    def select_metrics(self, metrics: Mapping[str, Any]) -> Values:
        """Return the metrics to report from those of a round."""
        selected = dict(metrics)
        if self.metrics is not None:
            missing = [name for name in self.metrics.values() if name not in metrics]
            if missing:
                raise KeyError(
                    f"unknown metric {missing[0]!r}; the metrics are {', '.join(map(repr, metrics)) or 'none'}. "
                    "A metric is named after its evaluation set and itself, such as 'valid-auc'"
                )
            selected = {name: metrics[original] for name, original in self.metrics.items()}
        if self.results_postprocessing_fn is None:
            return selected
        processed = self.results_postprocessing_fn(selected)
        if not isinstance(processed, dict):
            raise TypeError(f"results_postprocessing_fn must return a dict of metrics, got {processed!r}")
        return processed

    def should_checkpoint(self, num_rounds: int, *, last: bool) -> bool:
        """Return whether to save the model after this round; `last` if no round is known to follow."""
        return (last and self.checkpoint_at_end) or (self.frequency > 0 and num_rounds % self.frequency == 0)


class TreeReportCallback:
    """What the report callbacks of both libraries share."""

    requires: ClassVar[tuple[str, ...]] = ()
    """Packages that a callback needs when it is created."""
    checkpoint_class: ClassVar[type[ModelCheckpoint]]
    CHECKPOINT_NAME: ClassVar[str]

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        filename: str | None = None,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: PostProcess | None = None,
    ) -> None:
        """`filename` is by default `CHECKPOINT_NAME`."""
        require("ReportCallback", self.requires, "".join(self.requires))
        super().__init__()
        filename = self.CHECKPOINT_NAME if filename is None else filename
        names = parse_metric_names("metrics", metrics)
        self.plan = ReportPlan(names, filename, frequency, checkpoint_at_end, results_postprocessing_fn)
        self._metrics: Values | None = None
        self._num_saved_rounds = 0
        """Rounds of the model in the last report; 0 if it had no model."""

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str | None = None) -> Any:
        """Load the model from a checkpoint of this callback."""
        return cls.checkpoint_class._read_from(checkpoint, cls.CHECKPOINT_NAME if filename is None else filename)

    def _report_round(self, model: Any, num_rounds: int, metrics: Mapping[str, Any], *, last: bool) -> None:
        """Report a round. If it saves no model but the run is asked to stop here, the model is saved anyway."""
        self._metrics = self.plan.select_metrics(metrics)
        should_save = self.plan.should_checkpoint(num_rounds, last=last)
        self._num_saved_rounds = num_rounds if should_save else 0
        save = partial(self._save_model, model) if _is_rank_zero() else None
        if should_save:
            report(self._metrics, checkpoint=save() if save is not None else None)
        else:
            report(self._metrics, checkpoint_on_stop=save)

    def _report_end(self, model: Any, num_rounds: int) -> None:
        """Save the model, which may have fewer rounds after early stopping, unless the last report had the same one."""
        metrics, self._metrics = self._metrics, None
        if metrics is not None and self.plan.checkpoint_at_end and self._num_saved_rounds != num_rounds:
            report(metrics, checkpoint=self._save_model(model) if _is_rank_zero() else None)

    def _save_model(self, model: Any) -> Checkpoint:
        directory = staging_directory()
        with account_time(CHECKPOINT):
            self.checkpoint_class._write(model, directory / self.plan.filename)
        return Checkpoint.from_directory(directory)


def _is_rank_zero() -> bool:
    return get_context().get_world_rank() == 0
