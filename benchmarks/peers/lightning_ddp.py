"""Trains the same with Lightning. Arguments: a directory, the port of the benchmark, which model.

Lightning starts the second process itself. No logger, progress bar or checkpoints: only the loop.
"""

import json
import sys
from pathlib import Path

import lightning
import torch
from _ddp import REPORT_EVERY, Turns, dataset, make_model
from torch import nn
from torch.utils.data import DataLoader


class Model(lightning.LightningModule):
    def __init__(self, name):
        super().__init__()
        self.model, self.loss_fn = make_model(name), nn.CrossEntropyLoss()

    def training_step(self, batch, number):
        rows, labels = batch
        return self.loss_fn(self.model(rows), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class InTurns(lightning.Callback):
    def __init__(self, port):
        self.port, self.total, self.left = port, 0, 0

    def on_train_start(self, trainer, module):
        self.turns = Turns(self.port)
        self.wait(trainer)

    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        self.total += 1
        self.left -= 1
        if self.total % REPORT_EVERY == 0:
            outputs["loss"].item()
        if not self.left:
            self.turns.done()
            self.wait(trainer)

    def wait(self, trainer):
        self.left, _ = self.turns.next()
        trainer.should_stop = not self.left


if __name__ == "__main__":
    directory, port, name = sys.argv[1:]
    in_turns = InTurns(int(port))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=-1,
        callbacks=[in_turns],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=directory,
    )
    trainer.fit(Model(name), DataLoader(dataset(name), batch_size=64, shuffle=True))
    assert trainer.world_size == 2, f"{trainer.world_size} processes instead of 2"
    path = Path(directory, f"rank_{trainer.global_rank}.json")
    path.write_text(json.dumps({"steps": in_turns.total, "threads": torch.get_num_threads()}))
