"""Our loop and the bare one take turns step by step, in the same two workers. Arguments: a directory, model, steps.

Each of three loops has a model, a loader and an optimizer of its own: a bare one, ours, and a second bare one, which
shows how precise the comparison is. The order is always the same, so none follows itself. Then ours trains alone: what
the driver and the library's threads need meanwhile is the rest of its cost.
"""
# ruff: noqa: I001

import itertools
import json
import os
import sys
import threading
import time
from pathlib import Path

from paceline import train
from paceline.train.torch import TorchTrainer, prepare_data_loader, prepare_model
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from _ddp import REPORT_EVERY, dataset, iterate_steps, make_model, repeat_epochs

WARM_UP = 20


def make_bare_loop(model, rows):
    ddp = DistributedDataParallel(make_model(model))
    sampler = DistributedSampler(rows, shuffle=True)
    epochs = repeat_epochs(DataLoader(rows, batch_size=64, sampler=sampler), sampler)
    return iterate_steps(ddp, torch.optim.SGD(ddp.parameters(), lr=0.01), epochs, torch.Tensor.backward)


def make_our_loop(model, rows):
    ddp = prepare_model(make_model(model))
    loader = prepare_data_loader(DataLoader(rows, batch_size=64, shuffle=True))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    return iterate_steps(ddp, optimizer, itertools.repeat(loader), torch.Tensor.backward)


def read_own_cpu(driver):
    """Processor time of the library's threads in this process, and on rank 0 of the driver."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("paceline-")]
    clocks = [time.pthread_getcpuclockid(thread.ident) for thread in threads]
    if train.get_context().get_world_rank() == 0:
        clocks.append((~driver << 3) | 2)
    return sum(map(time.clock_gettime, clocks))


def train_func(config):
    rows = dataset(config["model"])
    loops = [make(config["model"], rows) for make in (make_bare_loop, make_our_loop, make_bare_loop)]
    for _ in range(WARM_UP):
        for steps in loops:
            next(steps)
    wall_s, cpu_s = [[] for _ in loops], [[] for _ in loops]
    for _ in range(config["steps"]):
        for number, steps in enumerate(loops):
            began, cpu_began = time.perf_counter(), time.process_time()
            next(steps)
            cpu_s[number].append(time.process_time() - cpu_began)
            wall_s[number].append(time.perf_counter() - began)
    # Ours alone: what a report costs, and what the driver and our threads need meanwhile.
    report_s, own_cpu_s = 0.0, -read_own_cpu(config["driver"])
    for step in range(1, config["steps"] + 1):
        loss = next(loops[1])
        if step % REPORT_EVERY == 0:
            value, began = loss.item(), time.thread_time()
            train.report({"step": step, "loss": value})
            report_s += time.thread_time() - began
    own_cpu_s += read_own_cpu(config["driver"])
    result = {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "report_s": report_s / config["steps"],
        "own_cpu_s": own_cpu_s / config["steps"],
        "threads": torch.get_num_threads(),
    }
    Path(config["directory"], f"rank_{train.get_context().get_world_rank()}.json").write_text(json.dumps(result))


directory, model, steps = sys.argv[1:]
TorchTrainer(
    train_func,
    train_loop_config={"directory": directory, "model": model, "steps": int(steps), "driver": os.getpid()},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="run", storage_path=directory),
).fit()
