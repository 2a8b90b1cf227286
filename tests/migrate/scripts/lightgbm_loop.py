"""LightGBM with Ray's callback."""

import lightgbm
import ray
from ray.train import ScalingConfig, get_dataset_shard
from ray.train.lightgbm import LightGBMTrainer, RayTrainReportCallback, get_network_params


def train_func(config):
    frame = get_dataset_shard("train").materialize().to_pandas()
    rows = lightgbm.Dataset(frame[["x"]], label=frame["y"])
    params = {"objective": "binary", "metric": "binary_logloss", "verbose": -1, "min_data_in_leaf": 1}
    lightgbm.train(
        {**params, **get_network_params()},
        rows,
        num_boost_round=config["rounds"],
        valid_sets=[rows],
        valid_names=["train"],
        callbacks=[RayTrainReportCallback()],
    )


result = LightGBMTrainer(
    train_func,
    train_loop_config={"rounds": 3},
    scaling_config=ScalingConfig(num_workers=1),
    datasets={"train": ray.data.from_items([{"x": float(i), "y": i % 2} for i in range(40)])},
).fit()
assert "train-binary_logloss" in result.metrics
assert RayTrainReportCallback.get_model(result.checkpoint).num_trees() == 3
