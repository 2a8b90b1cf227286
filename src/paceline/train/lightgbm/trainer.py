"""LightGBMTrainer: many workers train one LightGBM model, each with its own rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from paceline.train.checkpoint import Checkpoint
from paceline.train.lightgbm.config import LightGBMConfig
from paceline.train.lightgbm.model import LightGBMLibrary, ReportCallback
from paceline.train.trees.trainer import TreesArguments, TreesTrainer

if TYPE_CHECKING:
    import lightgbm


class LightGBMArguments(TreesArguments, total=False):
    feval: Any


class LightGBMTrainer(TreesTrainer):
    """Trains one LightGBM model on many workers; all end with the same model.

    Either pass a train function:

        def train_func():
            rows = train.get_dataset_shard("train").materialize().to_pandas()
            dataset = lightgbm.Dataset(rows.drop("y", axis=1), label=rows["y"])
            params = {"objective": "binary", **get_network_params()}
            lightgbm.train(params, dataset, callbacks=[ReportCallback(frequency=10)])

        LightGBMTrainer(train_func, datasets={"train": ...}, scaling_config=ScalingConfig(num_workers=4)).fit()

    or declare what to train, in which case an interrupted run resumes by itself:

        LightGBMTrainer(
            datasets={"train": ..., "valid": ...},
            label_column="y",
            params={"objective": "binary", "metric": "auc"},
            num_boost_round=100,
            scaling_config=ScalingConfig(num_workers=4),
        ).fit()

    The declared form also takes the arguments `callbacks` and `feval` of `lightgbm.train`.
    """

    _default_backend = LightGBMConfig
    _backend_argument = "lightgbm_config"
    _library = LightGBMLibrary()

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any] | None = None,
        *,
        lightgbm_config: LightGBMConfig | None = None,
        **arguments: Unpack[LightGBMArguments],
    ) -> None:
        super().__init__(train_loop_per_worker, backend_config=lightgbm_config, **arguments)

    @classmethod
    def get_model(cls, checkpoint: Checkpoint) -> lightgbm.Booster:
        """Load the model from a checkpoint of a run."""
        return ReportCallback.get_model(checkpoint)
