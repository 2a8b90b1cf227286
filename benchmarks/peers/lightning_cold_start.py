"""One sum over two workers, in one step of a trainer. Argument: a directory for the result."""

import json
import sys
from pathlib import Path

import lightning
import torch
from torch.utils.data import DataLoader


class Sum(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch, number):
        total = self.trainer.strategy.reduce(torch.ones(1), reduce_op="sum")
        self.log("total", total)
        result = json.dumps({"total": total.item()})
        Path(sys.argv[1], f"rank_{self.global_rank}.json").write_text(result)
        return self.weight * batch.sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Sum(), DataLoader(torch.ones(2)))
