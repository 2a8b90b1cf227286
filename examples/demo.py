"""A small convolutional network learns to tell eight shapes apart, on two workers of this machine.

    make demo
    make demo ARGS=--kill     rank 1 kills itself in epoch 2; training goes on from the checkpoint of epoch 1

Nothing is downloaded: the pictures are made on the spot. Below the stated accuracy it exits with an error.
"""

import argparse
import os
import signal
import sys
import time

import psutil

# Before torch: from here on the process that workers fork from imports it as well, at the same time as this one.
from paceline import train
from paceline.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer, get_device, prepare_data_loader, prepare_model

# isort: split
import torch
import torch.distributed as dist
from shapes import CLASSES, shapes
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

STATED_ACCURACY = 0.95
NUM_VALIDATION = 1000


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(288, len(CLASSES)),
    )


def train_func(config: dict) -> None:
    """Runs on every worker."""
    torch.manual_seed(0)
    rank = train.get_context().get_world_rank()
    net = network()
    model = prepare_model(net)  # on this worker's device, and sharing its gradients with the others
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = prepare_data_loader(DataLoader(shapes(config["samples"], seed=1), batch_size=32, shuffle=True))
    validation = prepare_data_loader(DataLoader(shapes(NUM_VALIDATION, seed=2), batch_size=250))

    first_epoch = 1
    if checkpoint := train.get_checkpoint():
        state = checkpoint.to_dict()
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"] + 1

    for epoch in range(first_epoch, config["epochs"] + 1):
        for pictures, labels in batches:
            loss = cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if config["kill"] and rank == 1 and epoch == 2 and first_epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)

        accuracy = accuracy_on(validation, net)
        print(f"epoch {epoch} of {config['epochs']}: loss {loss.item():.3f}, accuracy {accuracy:.1%}")
        checkpoint = None
        if rank == 0:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            checkpoint = Checkpoint.from_dict(state)
        train.report({"epoch": epoch, "accuracy": accuracy}, checkpoint=checkpoint)


def accuracy_on(batches: DataLoader, net: nn.Module) -> float:
    """How many pictures are told right, of those of all workers together."""
    num_right, num_seen = torch.zeros(2, device=get_device())
    with torch.no_grad():
        for pictures, labels in batches:
            num_right += (net(pictures).argmax(1) == labels).sum()
            num_seen += len(labels)
    dist.all_reduce(num_right)
    dist.all_reduce(num_seen)
    return (num_right / num_seen).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=6000, help="pictures to train on")
    parser.add_argument("--kill", action="store_true", help="let rank 1 kill itself in epoch 2")
    parser.add_argument("--storage-path", help="where runs are kept; by default ~/paceline_results")
    given = parser.parse_args()

    print(f"{given.samples} images, {len(CLASSES)} classes, target accuracy {STATED_ACCURACY:.0%}")
    trainer = TorchTrainer(
        train_func,
        train_loop_config={"epochs": given.epochs, "samples": given.samples, "kill": given.kill},
        scaling_config=ScalingConfig(num_workers=given.num_workers),
        run_config=RunConfig(storage_path=given.storage_path, failure_config=FailureConfig(max_failures=1)),
    )
    result = trainer.fit()

    accuracy = read_back_accuracy(result.checkpoint)
    took_s = time.time() - psutil.Process().create_time()
    print()
    print(f"accuracy    {accuracy:.1%} on {NUM_VALIDATION} unseen images, computed from the checkpoint")
    print(f"checkpoint  {result.checkpoint.path}")
    print(f"output      {result.log_dir}")
    print(f"took        {took_s:.1f} s, imports included")
    if accuracy < STATED_ACCURACY:
        sys.exit(f"that is below the {STATED_ACCURACY:.0%} that this demo states")
    print()
    print("Next:")
    if not given.kill:
        print("  make demo ARGS=--kill                           a worker is killed, and training goes on")
    print("  .venv/bin/python examples/train_ddp.py --help   a script to begin your own from")


def read_back_accuracy(checkpoint: Checkpoint) -> float:
    """What the stored network gets right, in this process."""
    net = network()
    net.load_state_dict(checkpoint.to_dict()["net"])
    pictures, labels = shapes(NUM_VALIDATION, seed=2).tensors
    with torch.no_grad():
        return (net(pictures).argmax(1) == labels).float().mean().item()


if __name__ == "__main__":
    main()
