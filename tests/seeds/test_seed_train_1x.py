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
def train_func():
    x, y = make_data()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(3):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()

def train_func_distributed():
    x, y = make_data()
    model = train.torch.prepare_model(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(30):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()

alone = train_func()
trainer = Trainer(backend="torch", num_workers=2)
trainer.start()
results = trainer.run(train_func_distributed)
trainer.shutdown()
"""
    )
    assert len(ended.results) == 2
    assert ended.results[0] == ended.results[1] < 0.1 < ended.alone


def test_user_guide_configuration_results_callbacks_datasets_and_failures(seed, tmp_path):
    ended = seed(
        """
import os
import signal
import paceline
from paceline import train
from paceline.train import Trainer
from paceline.train.callbacks import JsonLoggerCallback, TrainingCallback

trainer = Trainer(
    "torch", num_workers=2, use_gpu=False, resources_per_worker={"CPU": 1}, logdir="train_logs", max_retries=2
)
trainer.start()

# Configuration and ranks.
def train_func(config):
    results = []
    for i in range(config["num_epochs"]):
        results.append(i)
    return results, train.world_rank(), train.local_rank(), train.world_size()

print(trainer.run(train_func, config={"num_epochs": 2}))
results = trainer.run(train_func, config={"num_epochs": 3})
print(trainer.run(lambda: "another function"))

# Logging and callbacks.
class PrintingCallback(TrainingCallback):
    def __init__(self):
        self.calls = []

    def start_training(self, logdir, config, **info):
        self.calls.append(config)

    def handle_result(self, results, **info):
        print(results)
        self.calls.append([each["loss"] for each in results])

    def finish_training(self, error=False, **info):
        self.calls.append(error)

def train_func_reports(config):
    for i in range(3):
        train.report(epoch=i, loss=config["base"] - i + train.world_rank())
    return "done"

callback = PrintingCallback()
trainer.run(train_func_reports, config={"base": 10}, callbacks=[callback, JsonLoggerCallback()])

# Intermediate results.
losses = []
iterator = trainer.run_iterator(train_func_reports, config={"base": 4})
for reports in iterator:
    losses.append([report["loss"] for report in reports])
final = iterator.get_final_results()

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
    assert ended.results == [([0, 1, 2], 0, 0, 2), ([0, 1, 2], 1, 1, 2)]
    assert ended.callback.calls == [{"base": 10}, [10, 11], [9, 10], [8, 9], False]
    assert list((tmp_path / "train_logs").rglob("*.json*"))
    assert ended.losses == [[4, 5], [3, 4], [2, 3]]
    assert ended.final == ["done", "done"]
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


def test_a_trainer_given_its_function_with_verbs_for_its_checkpoints(seed):
    ended = seed(
        """
from paceline import train
from paceline.train import Checkpoint, ScalingConfig, Trainer

def train_loop_per_worker(config):
    before = train.get_checkpoint()
    step = before.to_dict()["step"] if before else 0
    for _ in range(config["steps"]):
        step += 1
        checkpoint = Checkpoint.from_dict({"step": step})
        train.report({"step": step}, checkpoint=checkpoint)
    return step

with Trainer(
    train_loop_per_worker=train_loop_per_worker,
    backend=None,
    scaling_config=ScalingConfig(num_workers=2),
) as trainer:
    first = trainer.run(config={"steps": 2})
    checkpoint = trainer.save_checkpoint()
    trainer.load_checkpoint(checkpoint)
    second = trainer.run(config={"steps": 3})

by_name = Trainer(num_workers=1)
by_name.start()
third = by_name.run(config={"steps": 1})
by_name.shutdown()
by_name.shutdown()
"""
    )
    assert (ended.first, ended.second, ended.third) == ([2, 2], [5, 5], [1])


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
