"""Trains a model with DDP in a bare loop, in turns. Arguments: a directory, the port of the benchmark, which model."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from _ddp import dataset, make_model, repeat_epochs, train_in_turns
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

directory, port, name = sys.argv[1:]
dist.init_process_group("gloo")
model = DistributedDataParallel(make_model(name))
rows = dataset(name)
sampler = DistributedSampler(rows, shuffle=True)
loader = DataLoader(rows, batch_size=64, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = train_in_turns(model, optimizer, repeat_epochs(loader, sampler), int(port))
path = Path(directory, f"rank_{dist.get_rank()}.json")
path.write_text(json.dumps({"steps": steps, "threads": torch.get_num_threads()}))
dist.destroy_process_group()
