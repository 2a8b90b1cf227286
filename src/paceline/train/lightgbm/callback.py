"""ReportCallback: what LightGBM found in each round is reported, and its model kept, as the rounds go by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.train.checkpoint import Checkpoint
from paceline.train.lightgbm.checkpoint import LightGBMCheckpoint
from paceline.train.trees.reports import PostProcess, Reporter, report_plan

if TYPE_CHECKING:
    import lightgbm


class ReportCallback:
    """A callback for `lightgbm.train`. Every rank has one.

        lightgbm.train(params, dataset, valid_sets=[...], callbacks=[ReportCallback(frequency=10)])

    `metrics`: a name such as `"valid-auc"`, a list of them, or a dict of the names to report by; None: all. Every
    `frequency` rounds, and at the end with `checkpoint_at_end`, the model goes with the report, as the file `filename`.
    `results_postprocessing_fn` is given the metrics and returns those to report.

    LightGBM tells its callbacks of the last round, but not when another callback has stopped it early.
    """

    CHECKPOINT_NAME = LightGBMCheckpoint.MODEL_FILENAME

    # After those that record and print, and before the one that stops early, which nothing runs after.
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
        self.plan = report_plan(metrics, filename, frequency, checkpoint_at_end, results_postprocessing_fn)
        self._reporter = Reporter(self.plan, LightGBMCheckpoint._write)

    def __call__(self, env: Any) -> None:
        """LightGBM calls this after each round."""
        num_rounds = env.iteration + 1
        found = evaluated(env.evaluation_result_list or ())
        self._reporter.round_ended(env.model, num_rounds, found, last=num_rounds == env.end_iteration)

    def training_ended(self, model: lightgbm.Booster) -> None:
        """Report the model that training has returned, up to its best round, where it stopped early; else do nothing.

        For code that lets LightGBM stop early: all ranks call it.
        """
        self._reporter.training_ended(model, model.current_iteration())

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = CHECKPOINT_NAME) -> lightgbm.Booster:
        """The model in a checkpoint that such a callback reported."""
        return LightGBMCheckpoint._read_from(checkpoint, filename)


RayTrainReportCallback = ReportCallback


def evaluated(results: Iterable[Any]) -> dict[str, float]:
    """The metrics of a round by name, `set-metric`; of cross-validation, their mean and standard deviation."""
    found: dict[str, float] = {}
    for name, metric, value, _, *deviation in results:
        if deviation and deviation[0] is not None:
            found[f"{name}-{metric}-mean"] = float(value)
            found[f"{name}-{metric}-stdv"] = float(deviation[0])
        else:
            found[f"{name}-{metric}"] = float(value)
    return found
