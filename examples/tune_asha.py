"""Find the learning rate, width and batch size of a small network, and stop early what is not worth its time.

    python examples/tune_asha.py --storage-path runs
    python examples/tune_asha.py --storage-path runs --name wide --trials 24

Run it again with the same --name and it goes on where it was, however it ended: trials that are over stay over, the
others continue from their last checkpoint. The best network is then read back and tested on pictures that no trial has
seen. Below the stated accuracy this exits with 1.
"""

import argparse
import sys

# Before torch: from here on the process that trials fork from imports it as well, at the same time as this one.
from paceline import tune
from paceline.tune.schedulers import ASHAScheduler

# isort: split
import torch
from shapes import CLASSES, shapes
from torch import nn
from torch.utils.data import TensorDataset

STATED_ACCURACY = 0.8


def network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, kernel_size=5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(18 * width, len(CLASSES)),
    )


def train_func(config: dict, train_set: TensorDataset, validation_set: TensorDataset) -> None:
    """One trial: it trains in a process of its own, and reports after each epoch. ASHA may end it there."""
    torch.manual_seed(0)
    pictures, labels = train_set.tensors
    model = network(config["width"])
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    first_epoch = 1
    if checkpoint := tune.get_checkpoint():
        state = checkpoint.to_dict()
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"] + 1
    for epoch in range(first_epoch, config["epochs"] + 1):
        # By the number of the epoch, so that a trial that goes on sees the order that it would have seen.
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(config["batch_size"]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pictures[rows]), labels[rows]).backward()
            optimizer.step()
        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        accuracy = accuracy_of(model, validation_set)
        tune.report({"accuracy": accuracy}, checkpoint=tune.Checkpoint.from_dict(state))


@torch.no_grad()
def accuracy_of(model: nn.Module, dataset: TensorDataset) -> float:
    pictures, labels = dataset.tensors
    return (model(pictures).argmax(1) == labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", type=int, help="trials at a time; by default one for each core")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=9, help="that a trial gets if it is among the best")
    parser.add_argument("--samples", type=int, default=2000, help="pictures to train on")
    parser.add_argument("--storage-path", default="runs", help="where searches are kept")
    parser.add_argument("--name", default="tune-asha", help="of the search; one that exists is continued")
    args = parser.parse_args()

    results = tune.Tuner(
        # In memory once, whatever the number of trials.
        tune.with_parameters(train_func, train_set=shapes(args.samples, seed=0), validation_set=shapes(500, seed=1)),
        param_space={
            "lr": tune.loguniform(1e-4, 1e-1),
            "width": tune.choice([4, 8, 16]),
            "batch_size": tune.choice([32, 64, 128]),
            "epochs": args.epochs,
        },
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=args.trials,
            max_concurrent_trials=args.num_workers,
            scheduler=ASHAScheduler(max_t=args.epochs, grace_period=1, reduction_factor=3),
            seed=0,
        ),
        run_config=tune.RunConfig(
            name=args.name,
            storage_path=args.storage_path,
            failure_config=tune.FailureConfig(max_failures=1),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="accuracy"),
        ),
    ).fit()

    # The best checkpoint of all trials. Chosen by its accuracy in validation, it may be lucky there: hence a test.
    best = results.get_best_result(scope="all")
    checkpoint = best.get_best_checkpoint("accuracy", "max")
    model = network(best.config["width"])
    model.load_state_dict(checkpoint.to_dict()["model"])
    accuracy = accuracy_of(model, shapes(2000, seed=2))
    epochs = sum(result.metrics["training_iteration"] for result in results)
    chosen = ", ".join(f"{name} {best.config[name]:.4g}" for name in ("lr", "width", "batch_size"))
    print(f"best        {chosen}")
    print(f"accuracy    {accuracy:.1%} on 2000 pictures that no trial has seen; stated are {STATED_ACCURACY:.0%}")
    print(f"trained     {epochs} epochs where all trials to their end would be {args.trials * args.epochs}")
    print(f"checkpoint  {checkpoint.path}")
    if accuracy < STATED_ACCURACY:
        sys.exit("that is below what this example states")


if __name__ == "__main__":
    main()
