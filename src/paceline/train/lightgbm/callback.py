"""ReportCallback: report LightGBM's metrics after each round and save its model during training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.train.checkpoint import Checkpoint
from paceline.train.lightgbm.checkpoint import LightGBMCheckpoint
from paceline.train.trees.reports import PostProcess, RoundReporter, make_report_plan

if TYPE_CHECKING:
    import lightgbm


class ReportCallback:
    """A callback for `lightgbm.train`. Use it on every rank.

        lightgbm.train(params, dataset, valid_sets=[...], callbacks=[ReportCallback(frequency=10)])

    `metrics`: a name such as `"valid-auc"`, a list of names, or a dict from reported name to LightGBM's name; None
    reports all. Every `frequency` rounds, and at the end with `checkpoint_at_end`, the report includes the model as the
    file `filename`. `results_postprocessing_fn` takes the metrics and returns those to report.

    LightGBM calls its callbacks after the last round, but not if another callback stops training early; see
    `training_ended`.
    """

    CHECKPOINT_NAME = LightGBMCheckpoint.MODEL_FILENAME

    # After the callbacks that record and print, before early stopping, which ends the round.
    order = 25
    before_iteration = False

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        filename: str = CHECKPOINT_NAME,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: PostProcess | None = None,
    ) -> None:
        self.plan = make_report_plan(metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn)
        self._reporter = RoundReporter(self.plan, LightGBMCheckpoint._write)

    def __call__(self, env: Any) -> None:
        """Called by LightGBM after each round."""
        num_rounds = env.iteration + 1
        found = collect_metrics(env.evaluation_result_list or ())
        self._reporter.on_round_end(env.model, num_rounds, found, last=num_rounds == env.end_iteration)

    def training_ended(self, model: lightgbm.Booster) -> None:
        """Report the returned model, up to its best round, if training stopped early; otherwise do nothing.

        For code that uses early stopping; all ranks must call it.
        """
        self._reporter.on_training_end(model, model.current_iteration())

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = CHECKPOINT_NAME) -> lightgbm.Booster:
        """Load the model from a checkpoint of this callback."""
        return LightGBMCheckpoint._read_from(checkpoint, filename)


RayTrainReportCallback = ReportCallback


def collect_metrics(results: Iterable[Any]) -> dict[str, float]:
    """Return the metrics of a round, named `set-metric`; for cross-validation, their mean and standard deviation."""
    found: dict[str, float] = {}
    for name, metric, value, _, *deviation in results:
        if deviation and deviation[0] is not None:
            found[f"{name}-{metric}-mean"] = float(value)
            found[f"{name}-{metric}-stdv"] = float(deviation[0])
        else:
            found[f"{name}-{metric}"] = float(value)
    return found
