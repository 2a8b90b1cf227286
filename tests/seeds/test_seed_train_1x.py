"""Scripts of the shape of Ray 1.x's documents, with imports of `paceline`: trainers with start, run, shutdown."""

from paceline.train import torch as _torch  # noqa: F401  workers begin to import torch while the tests are collected

LINEAR = """
import torch
import torch.nn as nn
from paceline import train
from paceline.train import Trainer

def make_data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 4, generator=generator)
    return x, x.sum(dim=1, keepdim=True)
"""


def test_quick_start_from_one_process_to_many(seed):
    ended = seed(
        LINEAR
        + """
def fit(model, num_steps):
    x, y = make_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(num_steps):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()

def train_func_distributed():
    return fit(train.torch.prepare_model(nn.Linear(4, 1)), 30)

alone = fit(nn.Linear(4, 1), 3)
trainer = Trainer(backend="torch", num_workers=2)
trainer.start()
results = trainer.run(train_func_distributed)
trainer.shutdown()
"""
    )
    assert len(ended.results) == 2
    assert ended.results[0] == ended.results[1] < 0.1 < ended.alone


def test_user_guide_datasets_and_fault_tolerance(seed):
    """The other parts of the guide are in tests/train/older/test_persistent_workers.py."""
    ended = seed(
        """
import os
import signal
import paceline
from paceline import train
from paceline.train import Trainer

trainer = Trainer("torch", num_workers=2, use_gpu=False, resources_per_worker={"CPU": 1}, max_retries=2)
trainer.start()

# Datasets.
def train_func_data(config):
    shard = train.get_dataset_shard()
    total = 0
    for epoch in range(config["num_epochs"]):
        for batch in shard.iter_torch_batches(batch_size=2):
            total += batch["x"].sum().item()
    return total

def train_func_two():
    return [sum(row["x"] for row in train.get_dataset_shard(name).iter_rows()) for name in ("train", "validation")]

train_dataset = paceline.data.from_items([{"x": i} for i in range(8)])
totals = trainer.run(train_func_data, config={"num_epochs": 2}, dataset=train_dataset)
two = trainer.run(train_func_two, dataset={"train": train_dataset, "validation": train_dataset.limit(2)})

# Fault tolerance.
def train_func_dies():
    checkpoint = train.load_checkpoint() or {"epoch": 0}
    for epoch in range(checkpoint["epoch"], 4):
        if epoch == 2 and checkpoint["epoch"] == 0 and train.world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        train.save_checkpoint(epoch=epoch + 1)
    return checkpoint["epoch"]

resumed_from = trainer.run(train_func_dies)
trainer.shutdown()
"""
    )
    assert sum(ended.totals) == 2 * sum(range(8))
    assert [sum(values) for values in zip(*ended.two, strict=True)] == [28, 1]
    assert ended.resumed_from == [2, 2]


def test_user_guide_saving_and_loading_checkpoints(seed):
    ended = seed(
        LINEAR
        + """
from paceline.train import CheckpointStrategy

def train_func(config):
    x, y = make_data()
    model = nn.Linear(4, 1)
    checkpoint = train.load_checkpoint() or {}
    if checkpoint:
        model.load_state_dict(checkpoint["model"])
    start_epoch = checkpoint.get("epoch", -1) + 1
    model = train.torch.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for epoch in range(start_epoch, config["num_epochs"]):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        train.report(loss=loss.item())
        train.save_checkpoint(epoch=epoch, loss=loss.item(), model=model.module.state_dict())
    return start_epoch

trainer = Trainer(backend="torch", num_workers=2)
trainer.start()
strategy = CheckpointStrategy(num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min")
first = trainer.run(train_func, config={"num_epochs": 3}, checkpoint_strategy=strategy)
print(trainer.latest_checkpoint_dir, trainer.best_checkpoint_path, trainer.latest_run_dir, trainer.logdir)
epoch = trainer.latest_checkpoint["epoch"]
second = trainer.run(train_func, config={"num_epochs": 5}, checkpoint=trainer.latest_checkpoint)
best = trainer.best_checkpoint
latest = trainer.latest_checkpoint
trainer.shutdown()
kept = sorted(path.name for path in trainer.latest_checkpoint_dir.glob("saved_*"))
"""
    )
    assert (ended.first, ended.epoch, ended.second) == ([0, 0], 2, [3, 3])
    assert ended.latest["epoch"] == ended.best["epoch"] == 4
    assert set(ended.latest["model"]) == {"weight", "bias"}
    assert len(ended.kept) == 2


def test_a_trainer_without_a_function_runs_that_of_the_usual_name(seed):
    ended = seed(
        """
from paceline import train
from paceline.train import Checkpoint, ScalingConfig, Trainer

def train_loop_per_worker(config):
    before = train.get_checkpoint()
    step = before.to_dict()["step"] if before else 0
    for _ in range(config["steps"]):
        step += 1
        train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
    return step

with Trainer(backend=None, scaling_config=ScalingConfig(num_workers=2)) as trainer:
    first = trainer.run(config={"steps": 2})
    trainer.load_checkpoint(trainer.save_checkpoint())
    second = trainer.run(config={"steps": 3})
"""
    )
    assert (ended.first, ended.second) == ([2, 2], [5, 5])


def test_a_torch_trainer_with_the_same_verbs(seed):
    ended = seed(
        LINEAR
        + """
import os
from paceline.train import ScalingConfig
from paceline.train.torch import TorchTrainer, get_device

def train_func(config):
    torch.manual_seed(0)
    model = train.torch.prepare_model(nn.Linear(4, 1))
    x, y = make_data()
    x = x.to(get_device())
    return os.getpid(), nn.functional.mse_loss(model(x), y).item() * config["scale"]

trainer = TorchTrainer(train_func, train_loop_config={"scale": 1.0}, scaling_config=ScalingConfig(num_workers=2))
trainer.start()
first = trainer.run()
second = trainer.run(train_func, {"scale": 2.0})
trainer.shutdown()
"""
    )
    assert [pid for pid, _ in ended.first] == [pid for pid, _ in ended.second]
    assert [loss for _, loss in ended.second] == [2 * loss for _, loss in ended.first]
