"""Several small runs in one process, with forked workers. Arguments: a directory, how many."""

import json
import sys
import time
from pathlib import Path

import lightning
import torch
from torch.utils.data import DataLoader


class Sum(lightning.LightningModule):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch, number):
        total = self.trainer.strategy.reduce(torch.ones(1), reduce_op="sum")
        self.log("total", total)
        result = json.dumps({"total": total.item()})
        Path(sys.argv[1], f"fit_{self.number}_rank_{self.global_rank}.json").write_text(result)
        return self.weight * batch.sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    took = []
    for number in range(int(sys.argv[2])):
        began = time.perf_counter()
        lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp_fork",
            max_steps=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(Sum(number), DataLoader(torch.ones(2)))
        took.append(time.perf_counter() - began)
    Path(sys.argv[1], "took.json").write_text(json.dumps(took))
