"""ReportCallback: report XGBoost's metrics after each round and save its model during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.train.backend import require
from paceline.train.checkpoint import Checkpoint
from paceline.train.trees.reports import PostProcess, RoundReporter, make_report_plan
from paceline.train.xgboost.checkpoint import XGBoostCheckpoint

if TYPE_CHECKING:
    import xgboost

try:
    from xgboost.callback import TrainingCallback
except ImportError:
    # The class exists without XGBoost, like all our names; creating an instance raises with a hint.
    TrainingCallback = object


class ReportCallback(TrainingCallback):  # type: ignore[misc]
    """A callback for `xgboost.train`. Use it on every rank.

        xgboost.train(params, matrix, evals=[...], callbacks=[ReportCallback(frequency=10)])

    `metrics`: a name such as `"valid-auc"`, a list of names, or a dict from reported name to XGBoost's name; None
    reports all. Every `frequency` rounds, and at the end with `checkpoint_at_end`, the report includes the model as the
    file `filename`, whose suffix `.ubj` or `.json` selects the format. `results_postprocessing_fn` takes the metrics
    and returns those to report.

    XGBoost does not tell its callbacks which round is the last. If the last round saved no model, its metrics are
    therefore reported again at the end, with the model. The same happens with `early_stopping_rounds` if the last round
    was the best, because XGBoost records that after this callback. To avoid it, put your own `EarlyStopping` before
    this callback.
    """

    CHECKPOINT_NAME = XGBoostCheckpoint.MODEL_FILENAME

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        filename: str = CHECKPOINT_NAME,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: PostProcess | None = None,
    ) -> None:
        require("ReportCallback", ("xgboost",), "xgboost")
        super().__init__()
        self.plan = make_report_plan(metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn)
        self._reporter = RoundReporter(self.plan, XGBoostCheckpoint._write)
        self._best: str | None = None
        """The model's best round so far, as of the previous round."""

    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Mapping[str, Any]]) -> bool:
        """Called by XGBoost after each round. Returning False continues training."""
        # Not `epoch`, which restarts at 0 when training continues from a model.
        self._reporter.on_round_end(model, model.num_boosted_rounds(), collect_metrics(evals_log))
        self._best = model.attr("best_iteration")
        return False

    def after_training(self, model: Any) -> Any:
        """Called by XGBoost at the end, also after early stopping."""
        changed = model.attr("best_iteration") != self._best
        self._reporter.on_training_end(model, model.num_boosted_rounds(), changed=changed)
        return model

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = CHECKPOINT_NAME) -> xgboost.Booster:
        """Load the model from a checkpoint of this callback."""
        return XGBoostCheckpoint._read_from(checkpoint, filename)


RayTrainReportCallback = ReportCallback


def collect_metrics(evals_log: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the metrics of the last round, named `set-metric`; for cross-validation, their mean and standard
    deviation."""
    found: dict[str, float] = {}
    for name, metrics in evals_log.items():
        for metric, history in metrics.items():
            newest = history[-1]
            if isinstance(newest, tuple):
                found[f"{name}-{metric}-mean"], found[f"{name}-{metric}-std"] = map(float, newest)
            else:
                found[f"{name}-{metric}"] = float(newest)
    return found
