"""Find the learning rate, width and depth of a small network, and stop early what is not worth its time.

    python examples/tune_asha.py --storage-path runs

Run it again with the same --name and it goes on where it was, however it ended.
"""

import argparse

import torch
from shapes import CLASSES, shapes

from paceline import tune
from paceline.tune.schedulers import ASHAScheduler


def train_func(config, train_set, test_set):
    torch.manual_seed(0)
    (x, y), (test_x, test_y) = train_set.tensors, test_set.tensors
    layers: list[torch.nn.Module] = [torch.nn.Flatten()]
    size = x[0].numel()
    for _ in range(config["depth"]):
        layers += [torch.nn.Linear(size, config["width"]), torch.nn.ReLU()]
        size = config["width"]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(size, len(CLASSES)))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    first = 0
    if checkpoint := tune.get_checkpoint():
        state = checkpoint.to_dict()
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    for epoch in range(first, config["epochs"]):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        tune.report({"accuracy": accuracy}, checkpoint=tune.Checkpoint.from_dict(state))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="tune-asha")
    parser.add_argument("--storage-path", default="runs")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--samples", type=int, default=2000)
    args = parser.parse_args()

    results = tune.Tuner(
        # In memory once, whatever the number of trials.
        tune.with_parameters(train_func, train_set=shapes(args.samples, seed=0), test_set=shapes(500, seed=1)),
        param_space={
            "lr": tune.loguniform(1e-3, 1),
            "width": tune.choice([16, 32, 64]),
            "depth": tune.randint(1, 4),
            "epochs": args.epochs,
        },
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=args.trials,
            scheduler=ASHAScheduler(max_t=args.epochs, grace_period=1, reduction_factor=3),
            seed=0,
        ),
        run_config=tune.RunConfig(
            name=args.name,
            storage_path=args.storage_path,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        ),
    ).fit()
    best = results.get_best_result()
    epochs = sum(result.metrics["training_iteration"] for result in results)
    print(f"best        {best.metrics['accuracy']:.1%} with {best.config}")
    print(f"trained     {epochs} epochs where all trials to their end would be {args.trials * args.epochs}")
    print(f"checkpoint  {best.checkpoint.path}")


if __name__ == "__main__":
    main()
