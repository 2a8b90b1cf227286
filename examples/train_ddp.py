"""Image classification with PyTorch's own DataLoader, on as many workers as you say.

    python examples/train_ddp.py --num-workers 4 --epochs 3
    python examples/train_ddp.py --num-workers 4 --epochs 9 --name shapes     run it again after a crash: it continues
    python examples/train_ddp.py --num-workers 2 --use-gpu                    a GPU for each worker

What makes it distributed is `prepare_model`, `prepare_data_loader` and `report`; the rest is PyTorch. The images are
made on the spot. Below the stated accuracy on images that it was not trained on, it exits with 1.
"""

import argparse
import sys
import tempfile
from pathlib import Path

# Before torch: from here on the process that workers fork from imports it as well, at the same time as this one.
from paceline import train
from paceline.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer, get_device, prepare_data_loader, prepare_model

# isort: split
import torch
import torch.distributed as dist
from shapes import CLASSES, shapes
from torch import nn
from torch.utils.data import DataLoader

STATED_ACCURACY = 0.9


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Linear(288, len(CLASSES))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images).flatten(1))


def train_func(config: dict) -> None:
    """Runs on every worker."""
    torch.manual_seed(config["seed"])
    context = train.get_context()

    # Your own dataset goes here. Each worker gets its part of it, shuffled anew in each epoch, on its device.
    train_loader = prepare_data_loader(
        DataLoader(shapes(config["samples"], seed=1), batch_size=config["batch_size"], shuffle=True)
    )
    validation_loader = prepare_data_loader(DataLoader(shapes(config["samples"] // 5, seed=2), batch_size=256))

    # `model` shares gradients between workers. `network` is the same parameters without the wrapping: what is stored
    # from it fits one worker as well as eight.
    network = Network()
    model = prepare_model(network)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])

    first_epoch = 0
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            state = torch.load(Path(directory, "checkpoint.pt"), map_location="cpu")
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"] + 1
        if context.get_world_size() > 1:
            train_loader.sampler.set_epoch(first_epoch)  # epochs are counted by themselves, from here on

    for epoch in range(first_epoch, config["epochs"]):
        model.train()
        for images, labels in train_loader:
            loss = loss_fn(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        metrics = {"epoch": epoch, **evaluated(network, validation_loader, loss_fn)}
        # Every rank reports; the files are rank 0's. When this returns, the checkpoint is safe.
        if context.get_world_rank() == 0:
            print(f"epoch {epoch}: validation loss {metrics['loss']:.3f}, accuracy {metrics['accuracy']:.1%}")
            with tempfile.TemporaryDirectory() as directory:
                state = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(state, Path(directory, "checkpoint.pt"))
                train.report(metrics, checkpoint=Checkpoint.from_directory(directory))
        else:
            train.report(metrics)


def evaluated(network: nn.Module, loader: DataLoader, loss_fn: nn.Module) -> dict[str, float]:
    """Loss and accuracy over the validation data of all workers together."""
    network.eval()
    sums = torch.zeros(3, device=get_device())
    with torch.no_grad():
        for images, labels in loader:
            outputs = network(images)
            sums[0] += loss_fn(outputs, labels) * len(labels)
            sums[1] += (outputs.argmax(1) == labels).sum()
            sums[2] += len(labels)
    dist.all_reduce(sums)
    loss, num_right, num_seen = sums.tolist()
    return {"loss": loss / num_seen, "accuracy": num_right / num_seen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--use-gpu", action="store_true", help="give each worker a GPU")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--samples", type=int, default=6000, help="images to train on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--min-accuracy", type=float, default=STATED_ACCURACY, help="or it exits with 1")
    parser.add_argument("--storage-path", help="where runs are kept; by default ~/paceline_results")
    parser.add_argument("--name", help="of the run; one that exists is continued")
    parser.add_argument("--max-failures", type=int, default=1, help="how often workers are restarted after a failure")
    args = parser.parse_args()

    trainer = TorchTrainer(
        train_func,
        train_loop_config={
            "epochs": args.epochs,
            "batch_size": args.batch_size,
            "lr": args.lr,
            "samples": args.samples,
            "seed": args.seed,
        },
        scaling_config=ScalingConfig(num_workers=args.num_workers, use_gpu=args.use_gpu),
        run_config=RunConfig(
            name=args.name,
            storage_path=args.storage_path,
            failure_config=FailureConfig(max_failures=args.max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy"),
        ),
    )
    result = trainer.fit()

    print(f"last metrics     {result.metrics}")
    print(f"last checkpoint  {result.checkpoint.path}")
    print(f"best checkpoint  {result.get_best_checkpoint('accuracy', 'max').path}")
    accuracy = max(metrics["accuracy"] for _, metrics in result.best_checkpoints)
    print(f"best accuracy    {accuracy:.1%}; {args.min_accuracy:.0%} is to be reached")
    if accuracy < args.min_accuracy:
        sys.exit("that is below what this example states")


if __name__ == "__main__":
    main()
