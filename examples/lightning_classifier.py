"""Image classification with Lightning: its Trainer runs inside the workers of a TorchTrainer.

    python examples/lightning_classifier.py --num-workers 2
    python examples/lightning_classifier.py --name shapes     run it again after a crash: it continues

pip install "paceline[lightning]". What a Lightning script needs is a strategy, a callback and `prepare_trainer`; the
module and its loaders stay as they are. Below the stated accuracy, on pictures it has not seen, this exits with 1.
"""

import argparse
import os
import sys

# Before torch: from here on the process that workers fork from imports it as well, at the same time as this one.
from paceline import train
from paceline.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from paceline.train.lightning import PacelineDDPStrategy, ReportCallback, prepare_trainer
from paceline.train.torch import TorchTrainer

# isort: split
import lightning.pytorch as pl
import torch
from shapes import CLASSES, shapes
from torch import nn
from torch.utils.data import DataLoader

STATED_ACCURACY = 0.9


class Classifier(pl.LightningModule):
    def __init__(self, lr: float, epochs: int) -> None:
        super().__init__()
        self.save_hyperparameters()  # so that load_from_checkpoint knows them
        self.network = nn.Sequential(
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

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.network(pictures)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        pictures, labels = batch
        loss = nn.functional.cross_entropy(self(pictures), labels)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> None:
        pictures, labels = batch
        accuracy = (self(pictures).argmax(1) == labels).float().mean()
        self.log("accuracy", accuracy, sync_dist=True)

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        # What the scheduler remembers is in the checkpoint too: a run that goes on has the rate it would have had.
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.hparams.epochs)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def train_func(config: dict) -> None:
    """Runs on every worker."""
    pl.seed_everything(config["seed"], verbose=False)
    # Your own datasets go here. Lightning gives each worker its part of them.
    train_loader = DataLoader(shapes(config["samples"], seed=1), batch_size=config["batch_size"], shuffle=True)
    validation_loader = DataLoader(shapes(config["samples"] // 5, seed=2), batch_size=256)

    trainer = pl.Trainer(
        max_epochs=config["epochs"],
        accelerator="auto",
        devices="auto",
        strategy=PacelineDDPStrategy(),
        callbacks=[ReportCallback()],  # after each epoch: what was logged, and a checkpoint
        enable_checkpointing=False,  # checkpoints are the run's: these would be a second set of files
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer = prepare_trainer(trainer)
    model = Classifier(config["lr"], config["epochs"])
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as directory:
            path = os.path.join(directory, ReportCallback.CHECKPOINT_NAME)
            trainer.fit(model, train_loader, validation_loader, ckpt_path=path)
    else:
        trainer.fit(model, train_loader, validation_loader)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--use-gpu", action="store_true", help="give each worker a GPU")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--samples", type=int, default=4000, help="pictures to train on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--storage-path", help="where runs are kept; by default ~/paceline_results")
    parser.add_argument("--name", help="of the run; one that exists is continued")
    args = parser.parse_args()

    result = TorchTrainer(
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
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy"),
        ),
    ).fit()

    best = result.get_best_checkpoint("accuracy", "max")
    with best.as_directory() as directory:
        path = os.path.join(directory, ReportCallback.CHECKPOINT_NAME)
        model = Classifier.load_from_checkpoint(path, map_location="cpu").eval()
    pictures, labels = shapes(1000, seed=3).tensors
    with torch.no_grad():
        accuracy = (model(pictures).argmax(1) == labels).float().mean().item()
    print(f"accuracy    {accuracy:.1%} on {len(labels)} pictures it has not seen; stated are {STATED_ACCURACY:.0%}")
    print(f"checkpoint  {best.path}")
    if accuracy < STATED_ACCURACY:
        sys.exit("that is below what this example states")


if __name__ == "__main__":
    main()
