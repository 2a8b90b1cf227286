"""XGBoostTrainer: many workers train one XGBoost model, each with its own rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from paceline.train.checkpoint import Checkpoint
from paceline.train.trees.trainer import TreesArguments, TreesTrainer
from paceline.train.xgboost.config import XGBoostConfig
from paceline.train.xgboost.model import ReportCallback, XGBoostLibrary

if TYPE_CHECKING:
    import xgboost


class XGBoostArguments(TreesArguments, total=False):
    custom_metric: Any
    early_stopping_rounds: int | None
    maximize: bool | None
    obj: Any
    verbose_eval: Any


class XGBoostTrainer(TreesTrainer):
    """Trains one XGBoost model on many workers; all end with the same model.

    Either pass a train function:

        def train_func():
            rows = train.get_dataset_shard("train").materialize().to_pandas()
            matrix = xgboost.DMatrix(rows.drop("y", axis=1), label=rows["y"])
            xgboost.train({"objective": "binary:logistic"}, matrix, callbacks=[ReportCallback(frequency=10)])

        XGBoostTrainer(train_func, datasets={"train": ...}, scaling_config=ScalingConfig(num_workers=4)).fit()

    or declare what to train, in which case an interrupted run resumes by itself:

        XGBoostTrainer(
            datasets={"train": ..., "valid": ...},
            label_column="y",
            params={"objective": "binary:logistic", "eval_metric": "auc"},
            num_boost_round=100,
            scaling_config=ScalingConfig(num_workers=4),
        ).fit()

    The declared form also takes the arguments `callbacks`, `custom_metric`, `early_stopping_rounds`, `maximize`, `obj`
    and `verbose_eval` of `xgboost.train`.
    """

    _default_backend = XGBoostConfig
    _backend_argument = "xgboost_config"
    _library = XGBoostLibrary()

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any] | None = None,
        *,
        xgboost_config: XGBoostConfig | None = None,
        **arguments: Unpack[XGBoostArguments],
    ) -> None:
        super().__init__(train_loop_per_worker, backend_config=xgboost_config, **arguments)

    @classmethod
    def get_model(cls, checkpoint: Checkpoint) -> xgboost.Booster:
        """Load the model from a checkpoint of a run."""
        return ReportCallback.get_model(checkpoint)
