"""How datasets are split: a preprocessor, options, a shuffle in each worker, and a `DataConfig` of one's own."""

import ray
import ray.data.preprocessors
from ray import train
from ray.train import DataConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def count_rows():
    shard, num_rows = train.get_dataset_shard("train"), 0
    for _ in range(2):
        for batch in shard.iter_torch_batches(batch_size=8, local_shuffle_buffer_size=16, prefetch_batches=1):
            num_rows += len(batch["id"])
    num_valid = sum(1 for _ in train.get_dataset_shard("valid").iter_rows())
    train.report({"rows": num_rows, "valid": num_valid})


class SplitAll(DataConfig):
    def configure(self, datasets, world_size, worker_handles, worker_node_ids, **kwargs):
        splits = datasets["train"].streaming_split(n=world_size, equal=True, locality_hints=worker_node_ids)
        return [{"train": splits[rank]} for rank in range(world_size)]


def count_split():
    batches = train.get_dataset_shard("train").iter_batches(batch_size=4)
    train.report({"rows": sum(len(batch["id"]) for batch in batches)})


scaler = ray.data.preprocessors.StandardScaler(columns=["id"])
rows = scaler.fit_transform(ray.data.range(64).map_batches(lambda batch: batch, batch_format="numpy"))
options = DataConfig.default_ingest_options()
options.preserve_order = True
result = TorchTrainer(
    count_rows,
    scaling_config=ScalingConfig(num_workers=2),
    datasets={"train": rows.random_shuffle(seed=3), "valid": ray.data.range(10)},
    dataset_config=DataConfig(datasets_to_split=["train"], execution_options=options),
).fit()
assert (result.metrics["rows"], result.metrics["valid"]) == (64, 10)

result = TorchTrainer(
    count_split,
    scaling_config=ScalingConfig(num_workers=2),
    datasets={"train": ray.data.range(20)},
    dataset_config=SplitAll(),
).fit()
assert result.metrics["rows"] == 10
