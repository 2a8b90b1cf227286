"""XGBoostTrainer: many workers train one XGBoost model, each with its own rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.train.backend import BackendConfig
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import RunConfig, ScalingConfig
from paceline.train.driver.datasets import DataConfig
from paceline.train.driver.validation import ValidationConfig
from paceline.train.trees.trainer import TreesTrainer
from paceline.train.trees.training_spec import BoostingLibrary, BoostingRules
from paceline.train.xgboost.boosting import RULES, XGBoostLibrary
from paceline.train.xgboost.config import XGBoostConfig
from paceline.train.xgboost.model import ReportCallback

if TYPE_CHECKING:
    import xgboost


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

    _default_backend: ClassVar[Callable[[], BackendConfig]] = XGBoostConfig
    _backend_argument: ClassVar[str] = "xgboost_config"
    _rules: ClassVar[BoostingRules] = RULES
    _library: ClassVar[BoostingLibrary] = XGBoostLibrary()

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any] | None = None,
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        xgboost_config: XGBoostConfig | None = None,
        scaling_config: ScalingConfig | Mapping[str, Any] | None = None,
        run_config: RunConfig | Mapping[str, Any] | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | Mapping[str, Any] | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        validation_config: ValidationConfig | Mapping[str, Any] | None = None,
        label_column: str | None = None,
        params: Mapping[str, Any] | None = None,
        num_boost_round: int | None = None,
        **train_kwargs: Any,
    ) -> None:
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=xgboost_config,
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            dataset_config=dataset_config,
            resume_from_checkpoint=resume_from_checkpoint,
            validation_config=validation_config,
            label_column=label_column,
            params=params,
            num_boost_round=num_boost_round,
            train_kwargs=train_kwargs,
        )

    @classmethod
    def get_model(cls, checkpoint: Checkpoint) -> xgboost.Booster:
        """Load the model from a checkpoint of a run."""
        return ReportCallback.get_model(checkpoint)
