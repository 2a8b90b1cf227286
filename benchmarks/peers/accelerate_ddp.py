"""Trains the same with Accelerate. Arguments: a directory, the port of the benchmark, which model."""

import itertools
import json
import sys
from pathlib import Path

import torch
from _ddp import dataset, make_model, train_in_turns
from accelerate import Accelerator
from torch.utils.data import DataLoader

directory, port, name = sys.argv[1:]
accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == 2, f"{accelerator.num_processes} processes instead of 2"
model = make_model(name)
model, optimizer, loader = accelerator.prepare(
    model,
    torch.optim.SGD(model.parameters(), lr=0.01),
    DataLoader(dataset(name), batch_size=64, shuffle=True),
)
assert isinstance(model, torch.nn.parallel.DistributedDataParallel), type(model)
steps = train_in_turns(model, optimizer, itertools.repeat(loader), int(port), backward=accelerator.backward)
path = Path(directory, f"rank_{accelerator.process_index}.json")
path.write_text(json.dumps({"steps": steps, "threads": torch.get_num_threads()}))
accelerator.end_training()
