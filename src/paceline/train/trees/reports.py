"""What a report callback reports after each boosting round, and when it saves the model.

`ReportPlan` decides which metrics are reported under which names, and whether with a checkpoint; it is pure.
`RoundReporter` writes the model and reports. Every rank reports, but only rank 0 contributes the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._core.time_accounting import CHECKPOINT, account_time
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import get_context, report, staging_directory

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

    def select_metrics(self, found: Mapping[str, Any]) -> Values:
        """Return the metrics to report from those of a round."""
        if self.metrics is None:
            told = dict(found)
        else:
            missing = [name for name in self.metrics.values() if name not in found]
            if missing:
                raise KeyError(
                    f"metrics names {missing[0]!r}, which was not evaluated; there are: "
                    f"{', '.join(map(repr, found)) or 'none'}. "
                    "A metric is named by its evaluation set and itself, such as 'valid-auc'"
                )
            told = {name: found[theirs] for name, theirs in self.metrics.items()}
        if self.results_postprocessing_fn is None:
            return told
        made = self.results_postprocessing_fn(told)
        if not isinstance(made, dict):
            raise TypeError(f"results_postprocessing_fn returned {made!r}, which is not a dict of metrics")
        return made

    def should_checkpoint(self, num_rounds: int, *, last: bool) -> bool:
        """Return whether to save the model after this round; `last` if no round is known to follow."""
        return (last and self.checkpoint_at_end) or (self.frequency > 0 and num_rounds % self.frequency == 0)


def make_report_plan(
    metrics: str | Sequence[str] | Mapping[str, str] | None,
    filename: str,
    frequency: int,
    checkpoint_at_end: bool,
    results_postprocessing_fn: PostProcess | None,
) -> ReportPlan:
    """Validate the arguments of a report callback."""
    if not isinstance(filename, str) or not filename or Path(filename).name != filename or filename.startswith("."):
        raise ValueError(f"filename={filename!r} is not a plain file name")
    if isinstance(frequency, bool) or not isinstance(frequency, int) or frequency < 0:
        raise ValueError(f"frequency={frequency!r} is not a whole number of rounds; 0 keeps no model before the end")
    if results_postprocessing_fn is not None and not callable(results_postprocessing_fn):
        raise ValueError(f"results_postprocessing_fn={results_postprocessing_fn!r} is not a function")
    return ReportPlan(
        _parse_metric_names(metrics), filename, frequency, bool(checkpoint_at_end), results_postprocessing_fn
    )


def _parse_metric_names(metrics: Any) -> Mapping[str, str] | None:
    if metrics is None:
        return None
    if isinstance(metrics, str):
        metrics = [metrics]
    named = dict(metrics) if isinstance(metrics, Mapping) else {name: name for name in _check_sequence(metrics)}
    if not all(isinstance(name, str) and isinstance(theirs, str) for name, theirs in named.items()):
        raise ValueError(f"metrics={metrics!r} is not a name, a list of names, or a dict of the names to report by")
    return named


def _check_sequence(metrics: Any) -> list[Any]:
    if not isinstance(metrics, Sequence):
        raise ValueError(f"metrics={metrics!r} is not a name, a list of names, or a dict of the names to report by")
    return list(metrics)


class RoundReporter:
    """Reports boosting rounds according to a plan. `save` writes a model to a file."""

    def __init__(self, plan: ReportPlan, save: Callable[[Any, Path], None]) -> None:
        self.plan = plan
        self._save = save
        self._told: Values | None = None
        self._num_kept = 0
        """Rounds of the model in the last report; 0 if it had no model."""

    def on_round_end(self, model: Any, num_rounds: int, found: Mapping[str, Any], *, last: bool = False) -> None:
        """Report a round. If it saves no model but the run is asked to stop here, the model is saved anyway."""
        self._told = self.plan.select_metrics(found)
        keeps = self.plan.should_checkpoint(num_rounds, last=last)
        self._num_kept = num_rounds if keeps else 0
        if keeps:
            report(self._told, checkpoint=self._make_checkpoint_if_needed(model))
        else:
            report(self._told, checkpoint_on_stop=(lambda: self._make_checkpoint(model)) if _is_rank_zero() else None)

    def on_training_end(self, model: Any, num_rounds: int, *, changed: bool = False) -> None:
        """Save the model at the end, unless the last round already saved the same model.

        After early stopping it may have fewer rounds; `changed` means that it differs otherwise.
        """
        told, self._told = self._told, None
        if told is not None and self.plan.checkpoint_at_end and (changed or self._num_kept != num_rounds):
            report(told, checkpoint=self._make_checkpoint_if_needed(model))

    def _make_checkpoint_if_needed(self, model: Any) -> Checkpoint | None:
        return self._make_checkpoint(model) if _is_rank_zero() else None

    def _make_checkpoint(self, model: Any) -> Checkpoint:
        directory = staging_directory()
        with account_time(CHECKPOINT):
            self._save(model, directory / self.plan.filename)
        return Checkpoint.from_directory(directory)


def _is_rank_zero() -> bool:
    return get_context().get_world_rank() == 0
