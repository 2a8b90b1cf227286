"""Times `Trainer.save_checkpoint` during training. Arguments: a directory, `[[megabytes, times], ...]`.

The first of each is cold. The saved module is read back once.
"""

import json
import os
import sys
import time
from pathlib import Path

import lightning
import torch
from torch.utils.data import DataLoader

NUM_TENSORS = 16
QUIET_S = 0.2


class Large(lightning.LightningModule):
    def __init__(self, megabytes, path):
        super().__init__()
        per_tensor = megabytes * (1 << 20) // 4 // NUM_TENSORS
        layers = (torch.arange(per_tensor, dtype=torch.float32) + i for i in range(NUM_TENSORS))
        self.layers = torch.nn.ParameterList(layers)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.path = path
        self.took = []

    def training_step(self, batch, number):
        return self.scale * batch.sum()

    def on_train_batch_end(self, outputs, batch, number):
        self.path.unlink(missing_ok=True)
        os.sync()
        time.sleep(QUIET_S)
        began = time.perf_counter()
        self.trainer.save_checkpoint(self.path)
        self.took.append(time.perf_counter() - began)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


directory, times_by_size = Path(sys.argv[1]), {}
for megabytes, times in json.loads(sys.argv[2]):
    model = Large(megabytes, directory / "state.ckpt")
    lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=1 + times,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(model, DataLoader(torch.ones(1 + times)))
    saved = torch.load(model.path, weights_only=True)["state_dict"]
    assert all(torch.equal(saved[f"layers.{i}"], layer) for i, layer in enumerate(model.layers))
    times_by_size[megabytes] = {"save_checkpoint": model.took}
    del saved, model
(directory / "took.json").write_text(json.dumps(times_by_size))
