"""Batch prediction: a trained model over a whole dataset, in several processes, written to Parquet files.

    python examples/batch_prediction.py --storage-path results
    python examples/batch_prediction.py --storage-path results      again after a kill: goes on with what is left

Each process of the pool loads the model once and predicts batch after batch; rows keep their order. What is written
stays out of sight until all is there. Killed at any moment and run again, it ends with the same files as if nothing had
happened: what was predicted is not predicted again, and every row is there once. If fewer predictions are right than is
stated, it exits with 1.
"""

import argparse
import sys
from pathlib import Path

# Before torch: from here on the process that workers fork from imports it as well, at the same time as this one.
import paceline.data
from paceline import train
from paceline.train import Checkpoint, RunConfig, ScalingConfig
from paceline.train.torch import ShardedCheckpoint, TorchPredictor, TorchTrainer, prepare_data_loader, prepare_model

# isort: split
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from shapes import SIZE, shapes
from torch import nn
from torch.utils.data import DataLoader
from train_ddp import Network

STATED_ACCURACY = 0.8


def train_func(config: dict) -> None:
    """Runs on every worker."""
    torch.manual_seed(0)
    model = prepare_model(Network())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loader = prepare_data_loader(DataLoader(shapes(config["samples"], seed=1), batch_size=32, shuffle=True))
    state = {"model": model, "optimizer": optimizer}
    first = 0
    if train.get_checkpoint() is not None:
        first = ShardedCheckpoint(train.get_checkpoint()).load_into(state)["epoch"] + 1
    for epoch in range(first, config["epochs"]):
        for pictures, labels in loader:
            loss = nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        # Every rank writes its part.
        checkpoint = ShardedCheckpoint.from_state({**state, "epoch": epoch})
        train.report({"epoch": epoch, "loss": loss.item()}, checkpoint=checkpoint)


class ShapePredictor(TorchPredictor):
    """Bytes in, the number of the class and how sure the model is out."""

    def inputs(self, batch):
        pixels = np.frombuffer(b"".join(batch["picture"]), np.uint8).reshape(-1, 1, SIZE, SIZE)
        return self.tensor(pixels.astype(np.float32) / 85 - 1)

    def call_model(self, inputs):
        sure, chosen = self.model(inputs).softmax(1).max(1)
        return {"predicted": chosen, "sure": sure}


def pictures_at(directory: Path, num_samples: int, num_files: int) -> Path:
    """Parquet files with a column of 784 bytes a picture, and one of labels. Your own files go here."""
    if directory.exists():
        return directory
    part = directory.with_suffix(".part")
    part.mkdir(parents=True, exist_ok=True)
    pictures, labels = shapes(num_samples, seed=2).tensors
    pixels = (pictures.clamp(-1, 2) * 85 + 85).to(torch.uint8).numpy().reshape(num_samples, -1)
    for number, rows in enumerate(np.array_split(np.arange(num_samples), num_files)):
        columns = {"id": rows, "picture": [row.tobytes() for row in pixels[rows]], "label": labels.numpy()[rows]}
        pq.write_table(pa.table(columns), part / f"part-{number:03d}.parquet")
    return part.rename(directory)


def predicted(files: Path, checkpoint: Checkpoint, args: argparse.Namespace) -> paceline.data.Dataset:
    return paceline.data.read_parquet(str(files)).map_batches(
        ShapePredictor,
        fn_constructor_kwargs={
            "checkpoint": checkpoint,
            "model": Network,
            "keep_columns": ["id", "label"],
            "use_gpu": args.use_gpu,
        },
        batch_size=256,
        concurrency=args.num_processes,
        num_gpus=1 if args.use_gpu else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-processes", type=int, default=2, help="that predict")
    parser.add_argument("--use-gpu", action="store_true", help="predict on GPUs, one for each process")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=4000, help="pictures to predict; so many are trained on as well")
    parser.add_argument("--files", type=int, default=16, help="that they lie in")
    parser.add_argument("--min-accuracy", type=float, default=STATED_ACCURACY, help="or it exits with 1")
    parser.add_argument("--storage-path", default="results", help="where all of it is kept")
    args = parser.parse_args()

    storage = Path(args.storage_path).absolute()
    files = pictures_at(storage / "pictures", args.samples, args.files)
    result = TorchTrainer(
        train_func,
        train_loop_config={"epochs": args.epochs, "samples": args.samples},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="model", storage_path=str(storage)),
    ).fit()

    out = storage / "predictions"
    print(f"predicting {args.samples} pictures into {out}")
    predicted(files, result.checkpoint, args).write_parquet(str(out), resume=True)
    table = pq.read_table(out)
    right = (table["predicted"].to_numpy() == table["label"].to_numpy()).mean()
    print(f"{table.num_rows} pictures in {len(list(out.glob('*.parquet')))} files, {right:.1%} of them right")
    print(f"to be reached: {args.min_accuracy:.0%}")
    if right < args.min_accuracy:
        sys.exit("that is below what this example states")


if __name__ == "__main__":
    main()
