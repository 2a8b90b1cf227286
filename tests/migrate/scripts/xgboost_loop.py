"""XGBoost: a loop with Ray's callback, and the declared form of older releases."""

import pandas as pd
import ray.data
import xgboost
from ray import train
from ray.train.xgboost import RayTrainReportCallback, XGBoostTrainer


def train_func(config):
    frame = pd.concat(train.get_dataset_shard("train").iter_batches(batch_format="pandas"))
    matrix = xgboost.DMatrix(frame[["x"]], label=frame["y"])
    xgboost.train(config, matrix, num_boost_round=3, evals=[(matrix, "train")], callbacks=[RayTrainReportCallback()])


rows = ray.data.from_items([{"x": float(i), "y": i % 2} for i in range(40)])
params = {"objective": "binary:logistic", "eval_metric": "logloss"}
result = XGBoostTrainer(
    train_func,
    train_loop_config=params,
    scaling_config=train.ScalingConfig(num_workers=1),
    datasets={"train": rows},
).fit()
assert "train-logloss" in result.metrics
assert RayTrainReportCallback.get_model(result.checkpoint).num_boosted_rounds() == 3

declared = XGBoostTrainer(
    params=params,
    label_column="y",
    num_boost_round=2,
    scaling_config=train.ScalingConfig(num_workers=1),
    datasets={"train": rows},
).fit()
assert XGBoostTrainer.get_model(declared.checkpoint).num_boosted_rounds() == 2
