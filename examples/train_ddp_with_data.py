"""Image classification with streaming datasets: files are read and prepared in processes of their own.

    python examples/train_ddp_with_data.py --num-workers 4 --epochs 3
    python examples/train_ddp_with_data.py --num-workers 4 --epochs 9 --name shapes     again after a crash: continues

The pictures lie in Parquet files. Beside the workers, other processes read them, turn bytes into normalised arrays and
hand them over in shared memory, while the workers train. A checkpoint in the middle of an epoch keeps the place in the
data too: no picture is used twice or left out, also when the run goes on with another number of workers. Below the
stated accuracy on pictures that it was not trained on, it exits with 1.
"""

import argparse
import sys
from pathlib import Path

# Before torch: from here on the process that workers fork from imports it as well, at the same time as this one.
import paceline.data
from paceline import train
from paceline.train import Checkpoint, CheckpointConfig, DataConfig, FailureConfig, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer, get_device, prepare_model

# isort: split
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from shapes import SIZE, shapes
from torch import nn
from train_ddp import Network

STATED_ACCURACY = 0.9


def pictures_at(directory: Path, num_samples: int, *, seed: int, num_files: int) -> Path:
    """Parquet files with a column of 784 bytes a picture, and one of labels. Your own files go here.

    They are made once: a place in the data means something as long as the files are the same.
    """
    if directory.exists():
        return directory
    part = directory.with_suffix(".part")
    part.mkdir(parents=True, exist_ok=True)
    pictures, labels = shapes(num_samples, seed=seed).tensors
    pixels = (pictures.clamp(-1, 2) * 85 + 85).to(torch.uint8).numpy().reshape(num_samples, -1)
    for number, rows in enumerate(np.array_split(np.arange(num_samples), num_files)):
        columns = {"picture": [row.tobytes() for row in pixels[rows]], "label": labels.numpy()[rows]}
        pq.write_table(pa.table(columns), part / f"part-{number:03d}.parquet", row_group_size=256)
    return part.rename(directory)


def prepared(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs in the data processes: bytes become arrays of numbers around 0."""
    pixels = np.frombuffer(b"".join(batch["picture"]), np.uint8).reshape(-1, 1, SIZE, SIZE)
    return {"image": pixels.astype(np.float32) / 85 - 1, "label": batch["label"]}


def train_func(config: dict) -> None:
    """Runs on every worker."""
    torch.manual_seed(config["seed"])
    context = train.get_context()
    train_shard = train.get_dataset_shard("train")
    validation_shard = train.get_dataset_shard("validation")

    network = Network()
    model = prepare_model(network)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])

    epoch = 0
    if (checkpoint := train.get_checkpoint()) is not None:
        state = checkpoint.to_dict()
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        epoch = state["epoch"]

    def stored(epoch: int) -> Checkpoint | None:
        """What training goes on from. The place in the data is no part of it: `report` adds that by itself."""
        if context.get_world_rank() != 0:
            return None
        return Checkpoint.from_dict(
            {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        )

    while epoch < config["epochs"]:
        model.train()
        # Each worker's part, shuffled anew in every epoch, on the worker's device. After a restart: what is left of it.
        batches = train_shard.iter_torch_batches(batch_size=config["batch_size"], local_shuffle_buffer_size=2000)
        for number, batch in enumerate(batches, start=1):
            loss = loss_fn(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if number % config["checkpoint_every"] == 0:
                train.report({"epoch": epoch, "train_loss": loss.item()}, checkpoint=stored(epoch))

        metrics = {"epoch": epoch, **evaluated(network, validation_shard, loss_fn)}
        if context.get_world_rank() == 0:
            print(f"epoch {epoch}: validation loss {metrics['loss']:.3f}, accuracy {metrics['accuracy']:.1%}")
        # Every rank reports; the files are rank 0's. When this returns, the checkpoint is safe.
        epoch += 1
        train.report(metrics, checkpoint=stored(epoch))


def evaluated(network: nn.Module, shard: paceline.data.DataIterator, loss_fn: nn.Module) -> dict[str, float]:
    """Loss and accuracy over the validation data of all workers together: every row counts once."""
    network.eval()
    sums = torch.zeros(3, device=get_device())
    with torch.no_grad():
        for batch in shard.iter_torch_batches(batch_size=256):
            outputs = network(batch["image"])
            sums[0] += loss_fn(outputs, batch["label"]) * len(batch["label"])
            sums[1] += (outputs.argmax(1) == batch["label"]).sum()
            sums[2] += len(batch["label"])
    dist.all_reduce(sums)
    loss, num_right, num_seen = sums.tolist()
    return {"loss": loss / num_seen, "accuracy": num_right / num_seen, "seen": num_seen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--use-gpu", action="store_true", help="give each worker a GPU")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--samples", type=int, default=6000, help="images to train on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint-every", type=int, default=50, help="batches, beside those that end an epoch")
    parser.add_argument("--min-accuracy", type=float, default=STATED_ACCURACY, help="or it exits with 1")
    parser.add_argument("--storage-path", default="results", help="where runs are kept, and the pictures")
    parser.add_argument("--name", help="of the run; one that exists is continued")
    parser.add_argument("--max-failures", type=int, default=1, help="how often workers are restarted after a failure")
    args = parser.parse_args()

    storage = Path(args.storage_path).absolute()
    train_files = pictures_at(storage / f"pictures-{args.samples}", args.samples, seed=1, num_files=8)
    validation_files = pictures_at(storage / "pictures-apart", 1001, seed=2, num_files=2)
    trainer = TorchTrainer(
        train_func,
        train_loop_config={
            "epochs": args.epochs,
            "batch_size": args.batch_size,
            "lr": args.lr,
            "checkpoint_every": args.checkpoint_every,
            "seed": args.seed,
        },
        datasets={
            "train": paceline.data.read_parquet(str(train_files), shuffle="files").map_batches(prepared),
            "validation": paceline.data.read_parquet(str(validation_files)).map_batches(prepared),
        },
        dataset_config=DataConfig(exact=["validation"]),
        scaling_config=ScalingConfig(num_workers=args.num_workers, use_gpu=args.use_gpu),
        run_config=RunConfig(
            name=args.name,
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=args.max_failures),
            checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy"),
        ),
    )
    result = trainer.fit()

    print(f"last metrics     {result.metrics}")
    print(f"last checkpoint  {result.checkpoint.path}")
    accuracy = max(metrics.get("accuracy", 0.0) for _, metrics in result.best_checkpoints)
    print(f"best checkpoint  {result.get_best_checkpoint('accuracy', 'max').path}")
    print(f"best accuracy    {accuracy:.1%}; {args.min_accuracy:.0%} is to be reached")
    if accuracy < args.min_accuracy:
        sys.exit("that is below what this example states")


if __name__ == "__main__":
    main()
