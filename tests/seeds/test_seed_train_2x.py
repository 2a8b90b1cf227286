"""Scripts of the shape of Ray Train 2.x's documents, with imports of `paceline`: quick start and user guides."""

from paceline.train import torch as _torch  # noqa: F401  workers begin to import torch while the tests are collected


def test_getting_started_with_pytorch(seed):
    ended = seed(
        """
import os
import tempfile

import torch
from torch.nn import CrossEntropyLoss
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

import paceline.train.torch

def train_func():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    model = paceline.train.torch.prepare_model(model)
    criterion = CrossEntropyLoss()
    optimizer = Adam(model.parameters(), lr=0.01)

    images = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    train_data = TensorDataset(images, (images.sum(dim=1) > 0).long())
    train_loader = DataLoader(train_data, batch_size=16, shuffle=True)
    train_loader = paceline.train.torch.prepare_data_loader(train_loader)

    for epoch in range(3):
        if paceline.train.get_context().get_world_size() > 1:
            train_loader.sampler.set_epoch(epoch)
        for images, labels in train_loader:
            outputs = model(images)
            loss = criterion(outputs, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        metrics = {"loss": loss.item(), "epoch": epoch}
        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            torch.save(model.module.state_dict(), os.path.join(temp_checkpoint_dir, "model.pt"))
            paceline.train.report(
                metrics,
                checkpoint=paceline.train.Checkpoint.from_directory(temp_checkpoint_dir),
            )
        if paceline.train.get_context().get_world_rank() == 0:
            print(metrics)

scaling_config = paceline.train.ScalingConfig(num_workers=2, use_gpu=False)
trainer = paceline.train.torch.TorchTrainer(
    train_func,
    scaling_config=scaling_config,
    # run_config=paceline.train.RunConfig(storage_path="s3://..."),
)
result = trainer.fit()

with result.checkpoint.as_directory() as checkpoint_dir:
    model_state_dict = torch.load(os.path.join(checkpoint_dir, "model.pt"))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    model.load_state_dict(model_state_dict)
"""
    )
    assert set(ended.result.metrics) == {"loss", "epoch"}
    assert ended.result.metrics["epoch"] == 2


def test_saving_and_loading_checkpoints_over_failures(seed):
    ended = seed(
        """
import os
import signal
import tempfile
from pathlib import Path

import torch
import torch.nn as nn
from torch.optim import Adam

import paceline.train.torch
from paceline import train
from paceline.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer

def train_func(config):
    torch.manual_seed(0)
    x = torch.ones(16, 4)
    y = torch.ones(16, 1)
    model = nn.Linear(4, 1)
    optimizer = Adam(model.parameters(), lr=3e-2)
    criterion = nn.MSELoss()

    start_epoch = 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as checkpoint_dir:
            model.load_state_dict(torch.load(os.path.join(checkpoint_dir, "model.pt")))
            optimizer.load_state_dict(torch.load(os.path.join(checkpoint_dir, "optimizer.pt")))
            start_epoch = torch.load(os.path.join(checkpoint_dir, "extra_state.pt"))["epoch"] + 1

    model = train.torch.prepare_model(model)
    for epoch in range(start_epoch, config["num_epochs"]):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics = {"loss": loss.item(), "started_at": start_epoch}
        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            checkpoint = None
            should_checkpoint = epoch % config.get("checkpoint_freq", 1) == 0
            if train.get_context().get_world_rank() == 0 and should_checkpoint:
                torch.save(model.module.state_dict(), os.path.join(temp_checkpoint_dir, "model.pt"))
                torch.save(optimizer.state_dict(), os.path.join(temp_checkpoint_dir, "optimizer.pt"))
                torch.save({"epoch": epoch}, os.path.join(temp_checkpoint_dir, "extra_state.pt"))
                checkpoint = Checkpoint.from_directory(temp_checkpoint_dir)
            train.report(metrics, checkpoint=checkpoint)
        train.collective.barrier()
        if epoch == 1 and start_epoch == 0 and train.get_context().get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)

trainer = TorchTrainer(
    train_func,
    train_loop_config={"num_epochs": 4},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(
        name="checkpoints",
        storage_path=os.path.abspath("runs"),
        failure_config=FailureConfig(max_failures=2),
        checkpoint_config=CheckpointConfig(
            num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min"
        ),
    ),
)
result = trainer.fit()
print(result.checkpoint)

# Inspecting the results.
df = result.metrics_dataframe
print("Minimum loss", min(df["loss"]))
for checkpoint, metrics in result.best_checkpoints:
    print(checkpoint.path, metrics)
best = result.get_best_checkpoint("loss", mode="min")
files = sorted(os.listdir(best.path))
result_path: str = result.path
restored_result = train.Result.from_path(result_path)
"""
    )
    assert ended.result.metrics["started_at"] == 2
    assert ended.df["started_at"].tolist() == [0, 0, 2, 2]
    assert {"model.pt", "optimizer.pt", "extra_state.pt"} <= set(ended.files)
    assert ended.restored_result.checkpoint.path == ended.result.checkpoint.path
    assert len(ended.result.best_checkpoints) == 2


def test_data_loading_distributed_checkpoints_callbacks_and_collectives(seed):
    ended = seed(
        """
import os
import tempfile

import torch
import paceline
from paceline import train
from paceline.train import Checkpoint, CheckpointUploadMode, DataConfig, RunConfig, ScalingConfig, UserCallback
from paceline.train.torch import TorchTrainer

train_dataset = paceline.data.from_items([{"item": i} for i in range(16)])
train_dataset = train_dataset.map_batches(lambda batch: {"item": batch["item"] * 2})
eval_dataset = paceline.data.range(3)

class CustomMetricsCallback(UserCallback):
    def __init__(self):
        self.calls = []

    def after_report(self, run_context, metrics, checkpoint):
        self.calls.append((run_context.train_loop_config, metrics))

    def after_exception(self, run_context, worker_exceptions):
        self.calls.append(worker_exceptions)

def train_func(config):
    rank = train.get_context().get_world_rank()
    shared = train.collective.broadcast_from_rank_zero({"seed": config["seed"]} if rank == 0 else None)
    iterator = train.get_dataset_shard("train")
    rows = sum(1 for _ in train.get_dataset_shard("eval").iter_rows())
    for step in range(2):
        total = 0
        for batch in iterator.iter_torch_batches(batch_size=4, local_shuffle_buffer_size=8):
            total += batch["item"].sum().item()
        totals = torch.tensor([total])
        torch.distributed.all_reduce(totals)
        checkpoint_dir = tempfile.mkdtemp()
        with open(os.path.join(checkpoint_dir, f"model-rank={rank}.pt"), "w") as file:
            file.write(f"{step}")
        train.report(
            {"step": step, "rank": rank, "seed": shared["seed"], "total": totals.item(), "eval_rows": rows},
            checkpoint=Checkpoint.from_directory(checkpoint_dir),
            checkpoint_dir_name=f"checkpoint_step_{step}",
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            delete_local_checkpoint_after_upload=True,
        )
    return [reported.metrics["step"] for reported in train.get_all_reported_checkpoints()]

callback = CustomMetricsCallback()
result = TorchTrainer(
    train_func,
    train_loop_config={"seed": 7},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(callbacks=[callback]),
    datasets={"train": train_dataset, "eval": eval_dataset},
    dataset_config=DataConfig(datasets_to_split=["train"]),
).fit()
calls = callback.calls
files = sorted(name for name in os.listdir(result.checkpoint.path) if name.startswith("model"))
"""
    )
    metrics = {"seed": 7, "total": sum(2 * i for i in range(16)), "eval_rows": 3}
    assert ended.calls == [
        ({"seed": 7}, [{"step": step, "rank": rank, **metrics} for rank in (0, 1)]) for step in (0, 1)
    ]
    assert ended.files == ["model-rank=0.pt", "model-rank=1.pt"]
    assert ended.result.checkpoint.path.endswith("checkpoint_step_1")
    assert ended.result.return_value == [0, 1]


def test_handling_failures_of_workers_and_of_the_job(seed):
    ended = seed(
        """
import os
from paceline import train
from paceline.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer

def train_fn_per_worker(config):
    checkpoint = train.get_checkpoint()
    start = checkpoint.to_dict()["epoch"] if checkpoint else 0
    for epoch in range(start, 3):
        train.report({"epoch": epoch, "start": start}, checkpoint=Checkpoint.from_dict({"epoch": epoch + 1}))
        if epoch == 1 and start == 0:
            raise RuntimeError("the job is lost")

def make_trainer(max_failures):
    return TorchTrainer(
        train_fn_per_worker,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="unique-run",
            storage_path=os.path.abspath("runs"),
            failure_config=FailureConfig(max_failures=max_failures),
        ),
    )

try:
    make_trainer(0).fit()
except train.TrainingFailedError as failure:
    error = failure
result = make_trainer(0).fit()
"""
    )
    assert ended.result.metrics == {"epoch": 2, "start": 2}
    assert all(isinstance(each, RuntimeError) for each in ended.error.worker_failures.values())
