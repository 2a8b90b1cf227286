"""Scripts of the shape of Ray 2.0's AIR documents, with imports of `paceline`: `session.report`, dict checkpoints."""

from paceline.train import torch as _torch  # noqa: F401  workers begin to import torch while the tests are collected


def test_torch_trainer_with_session_information_reports_and_dict_checkpoints(seed):
    ended = seed(
        """
import torch
import torch.nn as nn

import paceline
from paceline import train
from paceline.air import session, Checkpoint
from paceline.air.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer

input_size, layer_size, output_size, num_epochs = 1, 8, 1, 3

class NeuralNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Linear(input_size, layer_size)
        self.relu = nn.ReLU()
        self.layer2 = nn.Linear(layer_size, output_size)

    def forward(self, input):
        return self.layer2(self.relu(self.layer1(input)))

def train_loop_per_worker(config):
    dataset_shard = session.get_dataset_shard("train")
    model = NeuralNetwork()
    start = 0
    checkpoint = session.get_checkpoint()
    if checkpoint:
        state = checkpoint.to_dict()
        model.load_state_dict(state["model"])
        start = state["epoch"] + 1
    loss_fn = nn.MSELoss()
    model = train.torch.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for epoch in range(start, start + num_epochs):
        for batch in dataset_shard.iter_torch_batches(batch_size=16, dtypes=torch.float32):
            inputs, labels = torch.unsqueeze(batch["x"], 1), batch["y"]
            loss = loss_fn(model(inputs), labels.unsqueeze(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        session.report(
            {
                "loss": loss.item(),
                "epoch": epoch,
                "world_size": session.get_world_size(),
                "world_rank": session.get_world_rank(),
                "local_rank": session.get_local_rank(),
                "rows": sum(1 for _ in dataset_shard.iter_rows()),
                "trial": session.get_trial_id(),
                "experiment": session.get_experiment_name(),
            },
            checkpoint=Checkpoint.from_dict(dict(epoch=epoch, model=model.module.state_dict())),
        )

train_dataset = paceline.data.from_items([{"x": i / 64, "y": 2 * i / 64 + 1} for i in range(64)])
scaling_config = ScalingConfig(num_workers=2, use_gpu=False)
run_config = RunConfig(
    name="air",
    checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min"),
    failure_config=FailureConfig(max_failures=1),
)
trainer = TorchTrainer(
    train_loop_per_worker=train_loop_per_worker,
    train_loop_config={"lr": 0.05},
    scaling_config=scaling_config,
    run_config=run_config,
    datasets={"train": train_dataset},
)
result = trainer.fit()
print(f"Last result: {result.metrics}")

best_checkpoint, best_metrics = result.best_checkpoints[-1]
model_state = result.checkpoint.to_dict()["model"]
frame = result.metrics_dataframe
log_dir = result.log_dir

again = TorchTrainer(
    train_loop_per_worker=train_loop_per_worker,
    train_loop_config={"lr": 0.05},
    scaling_config=scaling_config,
    datasets={"train": train_dataset},
    resume_from_checkpoint=result.checkpoint,
).fit()

from paceline.train.data_parallel_trainer import DataParallelTrainer

def count_rows(config):
    session.report({"rows": sum(1 for _ in session.get_dataset_shard("train").iter_rows())})

datasets = {"train": paceline.data.range(4)}
plain = DataParallelTrainer(count_rows, scaling_config={"num_workers": 2}, datasets=datasets).fit()
"""
    )
    metrics = ended.result.metrics
    assert (metrics["epoch"], metrics["training_iteration"], metrics["done"]) == (2, 3, True)
    assert metrics["config"] == {"train_loop_config": {"lr": 0.05}}
    assert {"_timestamp", "_time_this_iter_s", "time_total_s", "date", "hostname", "node_ip", "pid"} <= set(metrics)
    assert ended.frame["loss"].tolist()[-1] == ended.best_metrics["loss"] < ended.frame["loss"].tolist()[0]
    assert len(ended.result.best_checkpoints) == 2
    assert set(ended.model_state) == {"layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias"}
    assert ended.log_dir.is_dir()
    assert (ended.again.metrics["epoch"], ended.again.metrics["training_iteration"]) == (5, 3)
    assert (metrics["world_size"], metrics["world_rank"], metrics["local_rank"], metrics["rows"]) == (2, 0, 0, 32)
    assert (metrics["trial"], metrics["experiment"]) == (metrics["trial_id"], "air")
    assert ended.plain.metrics["rows"] == 2


def test_a_checkpoint_between_its_forms(seed):
    ended = seed(
        """
from paceline.air import Checkpoint

checkpoint_data = {"data": 123}
checkpoint = Checkpoint.from_dict(checkpoint_data)
path = checkpoint.to_directory()
recovered_checkpoint = Checkpoint.from_directory(path)
recovered_data = recovered_checkpoint.to_dict()
data = recovered_checkpoint.to_bytes()
from_bytes = Checkpoint.from_bytes(data).to_dict()
with recovered_checkpoint.as_directory() as directory:
    pass
"""
    )
    assert ended.recovered_data == ended.from_bytes == {"data": 123}
    assert ended.directory == ended.path
