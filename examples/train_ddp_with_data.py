"""Image classification with streaming datasets: files are read and prepared in processes of their own.

    python examples/train_ddp_with_data.py --num-workers 4 --epochs 3
    python examples/train_ddp_with_data.py --num-workers 4 --epochs 9 --name shapes     again after a crash: continues

The pictures lie in Parquet files. Beside the workers, other processes read them, turn bytes into normalised arrays and
hand them over in shared memory, while the workers train. A checkpoint in the middle of an epoch keeps the place in the
data too: no picture is used twice or left out, also when the run goes on with another number of workers.
"""

import argparse
import tempfile
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


def written(directory: Path, num_samples: int, *, seed: int, num_files: int) -> Path:
    """Parquet files with a column of 784 bytes a picture, and one of labels. Your own files go here."""
    directory.mkdir(parents=True)
    pictures, labels = shapes(num_samples, seed=seed).tensors
    pixels = (pictures.clamp(-1, 2) * 85 + 85).to(torch.uint8).numpy().reshape(num_samples, -1)
    for number, part in enumerate(np.array_split(np.arange(num_samples), num_files)):
        table = pa.table(
            {
                "picture": pa.array([row.tobytes() for row in pixels[part]]),
                "label": pa.array(labels.numpy()[part]),
            }
        )
        pq.write_table(table, directory / f"part-{number:03d}.parquet", row_group_size=256)
    return directory


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

    first_epoch = 0
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            state = torch.load(Path(directory, "checkpoint.pt"), map_location="cpu")
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"] + 1

    for epoch in range(first_epoch, config["epochs"]):
        model.train()
        # Each worker's part, shuffled anew in every epoch, on the worker's device.
        for batch in train_shard.iter_torch_batches(batch_size=config["batch_size"], local_shuffle_buffer_size=2000):
            loss = loss_fn(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        metrics = {"epoch": epoch, **evaluated(network, validation_shard, loss_fn)}
        # Every rank reports; the files are rank 0's. When this returns, the checkpoint is safe.
        if context.get_world_rank() == 0:
            print(f"epoch {epoch}: validation loss {metrics['loss']:.3f}, accuracy {metrics['accuracy']:.1%}")
            with tempfile.TemporaryDirectory() as directory:
                state = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
                torch.save(state, Path(directory, "checkpoint.pt"))
                train.report(metrics, checkpoint=Checkpoint.from_directory(directory))
        else:
            train.report(metrics)


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
    parser.add_argument("--storage-path", help="where runs are kept; by default ~/paceline_results")
    parser.add_argument("--name", help="of the run; one that exists is continued")
    parser.add_argument("--max-failures", type=int, default=1, help="how often workers are restarted after a failure")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as directory:
        train_files = written(Path(directory, "train"), args.samples, seed=1, num_files=8)
        validation_files = written(Path(directory, "validation"), args.samples // 5 + 1, seed=2, num_files=2)
        trainer = TorchTrainer(
            train_func,
            train_loop_config={
                "epochs": args.epochs,
                "batch_size": args.batch_size,
                "lr": args.lr,
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
                storage_path=args.storage_path,
                failure_config=FailureConfig(max_failures=args.max_failures),
                checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy"),
            ),
        )
        result = trainer.fit()

    print(f"last metrics     {result.metrics}")
    print(f"last checkpoint  {result.checkpoint.path}")
    print(f"best checkpoint  {result.get_best_checkpoint('accuracy', 'max').path}")


if __name__ == "__main__":
    main()
