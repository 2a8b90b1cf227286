"""ReportCallback: what XGBoost found in each round is reported, and its model kept, as the rounds go by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.train.backend import require
from paceline.train.checkpoint import Checkpoint
from paceline.train.trees.reports import PostProcess, Reporter, report_plan
from paceline.train.xgboost.checkpoint import XGBoostCheckpoint

if TYPE_CHECKING:
    import xgboost

try:
    from xgboost.callback import TrainingCallback
except ImportError:
    # The name is there without XGBoost, as all names of ours are; to make one then says what is missing.
    TrainingCallback = object


class ReportCallback(TrainingCallback):  # type: ignore[misc]
    """A callback for `xgboost.train`. Every rank has one.

        xgboost.train(params, matrix, evals=[...], callbacks=[ReportCallback(frequency=10)])

    `metrics`: a name such as `"valid-auc"`, a list of them, or a dict of the names to report by; None: all. Every
    `frequency` rounds, and at the end with `checkpoint_at_end`, the model goes with the report, as the file `filename`:
    its ending says in which format, `.ubj` or `.json`. `results_postprocessing_fn` is given the metrics and returns
    those to report.

    XGBoost does not tell its callbacks which round is the last. So if that one kept no model, its metrics are reported
    once more at the end, with the model. So they are where `early_stopping_rounds` was given and the last round was the
    best: XGBoost notes that after this callback. An `EarlyStopping` of yours that comes before it is in time.
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
        self.plan = report_plan(metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn)
        self._reporter = Reporter(self.plan, XGBoostCheckpoint._write)
        self._best: str | None = None
        """The best round so far as the model said it after the last one."""

    def after_iteration(self, model: Any, epoch: int, evals_log: Mapping[str, Mapping[str, Any]]) -> bool:
        """XGBoost calls this after each round; False lets it go on."""
        # Not `epoch`, which counts from 0 again when a model is trained further.
        self._reporter.round_ended(model, model.num_boosted_rounds(), evaluated(evals_log))
        self._best = model.attr("best_iteration")
        return False

    def after_training(self, model: Any) -> Any:
        """XGBoost calls this at the end, also when it stopped early."""
        changed = model.attr("best_iteration") != self._best
        self._reporter.training_ended(model, model.num_boosted_rounds(), changed=changed)
        return model

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = CHECKPOINT_NAME) -> xgboost.Booster:
        """The model in a checkpoint that such a callback reported."""
        return XGBoostCheckpoint._read_from(checkpoint, filename)


RayTrainReportCallback = ReportCallback


def evaluated(evals_log: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The metrics of the newest round by name, `set-metric`; of cross-validation, their mean and standard deviation."""
    found: dict[str, float] = {}
    for name, metrics in evals_log.items():
        for metric, history in metrics.items():
            newest = history[-1]
            if isinstance(newest, tuple):
                found[f"{name}-{metric}-mean"], found[f"{name}-{metric}-std"] = map(float, newest)
            else:
                found[f"{name}-{metric}"] = float(newest)
    return found
