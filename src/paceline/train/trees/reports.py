"""What a report callback says after each round of boosting, and when it keeps the model.

Which metrics, under which names, and whether a checkpoint goes with them are decided by `ReportPlan`, which is pure;
`Reporter` writes the model and makes the report. Every rank reports, rank 0 alone brings the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._core.spending import CHECKPOINT, spent
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import get_context, report, staging_directory

Values = dict[str, Any]
PostProcess = Callable[[Values], Values]


@dataclass(frozen=True)
class ReportPlan:
    """Which metrics are reported after a round, and after which rounds the model is kept."""

    metrics: Mapping[str, str] | None
    """The name to report by the library's own; None: all that there are."""
    filename: str
    frequency: int
    checkpoint_at_end: bool
    results_postprocessing_fn: PostProcess | None = None

    def told(self, found: Mapping[str, Any]) -> Values:
        """What is reported of the metrics that a round found."""
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

    def keeps(self, num_rounds: int, *, last: bool) -> bool:
        """Whether the model is kept that has this many rounds; `last`: as far as is known, no round follows."""
        return (last and self.checkpoint_at_end) or (self.frequency > 0 and num_rounds % self.frequency == 0)


def report_plan(
    metrics: str | Sequence[str] | Mapping[str, str] | None,
    filename: str,
    frequency: int,
    checkpoint_at_end: bool,
    results_postprocessing_fn: PostProcess | None,
) -> ReportPlan:
    """The arguments of a report callback, checked."""
    if not isinstance(filename, str) or not filename or Path(filename).name != filename or filename.startswith("."):
        raise ValueError(f"filename={filename!r} is not a plain file name")
    if isinstance(frequency, bool) or not isinstance(frequency, int) or frequency < 0:
        raise ValueError(f"frequency={frequency!r} is not a whole number of rounds; 0 keeps no model before the end")
    if results_postprocessing_fn is not None and not callable(results_postprocessing_fn):
        raise ValueError(f"results_postprocessing_fn={results_postprocessing_fn!r} is not a function")
    return ReportPlan(_named(metrics), filename, frequency, bool(checkpoint_at_end), results_postprocessing_fn)


def _named(metrics: Any) -> Mapping[str, str] | None:
    if metrics is None:
        return None
    if isinstance(metrics, str):
        metrics = [metrics]
    named = dict(metrics) if isinstance(metrics, Mapping) else {name: name for name in _listed(metrics)}
    if not all(isinstance(name, str) and isinstance(theirs, str) for name, theirs in named.items()):
        raise ValueError(f"metrics={metrics!r} is not a name, a list of names, or a dict of the names to report by")
    return named


def _listed(metrics: Any) -> list[Any]:
    if not isinstance(metrics, Sequence):
        raise ValueError(f"metrics={metrics!r} is not a name, a list of names, or a dict of the names to report by")
    return list(metrics)


class Reporter:
    """Reports rounds of boosting as a plan says. `save` writes a model of the library to a file."""

    def __init__(self, plan: ReportPlan, save: Callable[[Any, Path], None]) -> None:
        self.plan = plan
        self._save = save
        self._told: Values | None = None
        self._num_kept = 0
        """How many rounds the model had that went with the last report; 0: none did."""

    def round_ended(self, model: Any, num_rounds: int, found: Mapping[str, Any], *, last: bool = False) -> None:
        """Report a round. Where it keeps no model and the run is asked to stop right here, the model is kept."""
        self._told = self.plan.told(found)
        keeps = self.plan.keeps(num_rounds, last=last)
        self._num_kept = num_rounds if keeps else 0
        if keeps:
            report(self._told, checkpoint=self._checkpoint(model))
        else:
            report(self._told, checkpoint_on_stop=(lambda: self._made(model)) if _brings_files() else None)

    def training_ended(self, model: Any, num_rounds: int, *, changed: bool = False) -> None:
        """Keep the model at the end, unless the last round did and it is still the same.

        One that stopped early may have fewer rounds by now; `changed`: something else of it has.
        """
        told, self._told = self._told, None
        if told is not None and self.plan.checkpoint_at_end and (changed or self._num_kept != num_rounds):
            report(told, checkpoint=self._checkpoint(model))

    def _checkpoint(self, model: Any) -> Checkpoint | None:
        return self._made(model) if _brings_files() else None

    def _made(self, model: Any) -> Checkpoint:
        directory = staging_directory()
        with spent(CHECKPOINT):
            self._save(model, directory / self.plan.filename)
        return Checkpoint.from_directory(directory)


def _brings_files() -> bool:
    return get_context().get_world_rank() == 0
