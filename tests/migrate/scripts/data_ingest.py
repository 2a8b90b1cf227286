"""Ray Data into a train function: a preprocessor, `map_batches`, and batches of torch."""

import ray
import ray.data.preprocessors
from ray.train import DataConfig, ScalingConfig, get_dataset_shard, report
from ray.train.torch import TorchTrainer

rows = ray.data.from_items([{"x": float(i), "y": float(i % 2)} for i in range(32)])
rows = rows.map_batches(lambda batch: {"x": batch["x"] * 2, "y": batch["y"]}, batch_format="numpy")
train_rows, valid_rows = rows.train_test_split(test_size=0.25)
scaler = ray.data.preprocessors.StandardScaler(columns=["x"])
train_rows = scaler.fit_transform(train_rows)


def train_func():
    num_rows = 0
    for _ in range(2):
        for batch in get_dataset_shard("train").iter_torch_batches(batch_size=4, dtypes=None):
            assert set(batch) == {"x", "y"}
            num_rows += len(batch["x"])
    num_valid = sum(len(batch["x"]) for batch in get_dataset_shard("valid").iter_batches(batch_size=8))
    report({"rows": num_rows, "valid": num_valid})


result = TorchTrainer(
    train_func,
    scaling_config=ScalingConfig(num_workers=2),
    datasets={"train": train_rows, "valid": valid_rows},
    dataset_config=DataConfig(datasets_to_split=["train"]),
).fit()
assert (result.metrics["rows"], result.metrics["valid"]) == (24, 8)
