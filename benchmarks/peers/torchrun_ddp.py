"""A small model trained with DDP, in turns. Arguments: a directory, the port of who tells when."""

import itertools
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from _ddp import dataset, small_model, train_in_turns
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def epochs(loader, sampler):
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield loader


dist.init_process_group("gloo")
model = DistributedDataParallel(small_model())
rows = dataset()
sampler = DistributedSampler(rows, shuffle=True)
loader = DataLoader(rows, batch_size=64, sampler=sampler)
steps = train_in_turns(model, epochs(loader, sampler), int(sys.argv[2]), None)
path = Path(sys.argv[1], f"rank_{dist.get_rank()}.json")
path.write_text(json.dumps({"steps": steps, "threads": torch.get_num_threads()}))
dist.destroy_process_group()
