"""The training that several benchmarks time, alike for ours and the peer: a small model, data in memory.

Rank 0 is told over a socket how many steps to train and answers how long they took, so two contestants that run at the
same time can take turns. It runs inside the workers.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

REPORT_EVERY = 10


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    rows = 16_384
    return TensorDataset(
        torch.randn(rows, 256, generator=generator),
        torch.randint(0, 10, (rows,), generator=generator),
    )


def train_in_turns(
    model: nn.Module,
    epochs: Iterable[DataLoader[Any]],
    port: int,
    report: Callable[[dict[str, float]], object] | None,
) -> int:
    """Train whenever told, until told to end. Returns the number of steps."""
    steps = _steps(model, epochs)
    told = socket.create_connection(("127.0.0.1", port)).makefile("rw") if dist.get_rank() == 0 else None
    pids: list[int | None] = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    if told:
        told.write(" ".join(map(str, pids)) + "\n")
        told.flush()
    total = 0
    while count := _agreed(int(told.readline() or 0) if told else 0):
        dist.barrier()
        began = time.perf_counter()
        for _ in range(count):
            loss = next(steps)
            total += 1
            if total % REPORT_EVERY == 0:
                value = loss.item()
                if report is not None:
                    report({"step": total, "loss": value})
        took = time.perf_counter() - began
        if told:
            told.write(f"{took}\n")
            told.flush()
    return total


def _steps(model: nn.Module, epochs: Iterable[DataLoader[Any]]) -> Iterator[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    lossy = nn.CrossEntropyLoss()
    for loader in epochs:
        for rows, labels in loader:
            optimizer.zero_grad()
            loss = lossy(model(rows), labels)
            loss.backward()
            optimizer.step()
            yield loss.detach()


def _agreed(count: int) -> int:
    number = torch.tensor([count])
    dist.broadcast(number, 0)
    return int(number.item())
