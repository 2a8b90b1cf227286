"""The training that several benchmarks time, alike for ours and the peers: a model, data in memory.

Rank 0 is told over a socket how many steps to train and how often to report, and answers how long they took, so several
contestants that run at the same time can take turns. It runs inside the workers.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

REPORT_EVERY = 10

# Features and hidden layers: 0.4 million parameters, and 2.1 million.
MODELS = {"small": (256, (512, 512)), "middle": (512, (1024, 1024, 512))}


def made_model(name: str) -> nn.Module:
    features, hidden = MODELS[name]
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(features, size), nn.ReLU()]
        features = size
    return nn.Sequential(*layers, nn.Linear(features, 10))


def dataset(name: str) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    rows = 16_384
    return TensorDataset(
        torch.randn(rows, MODELS[name][0], generator=generator),
        torch.randint(0, 10, (rows,), generator=generator),
    )


class Turns:
    """What a rank is told to do. Rank 0 hears it and tells the others."""

    def __init__(self, port: int) -> None:
        first = dist.get_rank() == 0
        self._line: TextIO | None = socket.create_connection(("127.0.0.1", port)).makefile("rw") if first else None
        pids: list[int | None] = [None] * dist.get_world_size()
        dist.all_gather_object(pids, os.getpid())
        self._say(" ".join(map(str, pids)))

    def next(self) -> tuple[int, int]:
        """How many steps, and after how many of them to report each time (0: never). No steps: it is over."""
        told = (self._line.readline() or "0 0").split() if self._line else ("0", "0")
        numbers = torch.tensor([int(word) for word in told])
        dist.broadcast(numbers, 0)
        dist.barrier()
        self._began = time.perf_counter()
        return int(numbers[0]), int(numbers[1])

    def done(self) -> None:
        self._say(str(time.perf_counter() - self._began))

    def _say(self, text: str) -> None:
        if self._line:
            self._line.write(f"{text}\n")
            self._line.flush()


def train_in_turns(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    epochs: Iterable[DataLoader[Any]],
    port: int,
    report: Callable[[dict[str, float]], object] | None = None,
    backward: Callable[[torch.Tensor], object] = torch.Tensor.backward,
) -> int:
    """Train whenever told, until told to end. Returns the number of steps."""
    steps = _steps(model, optimizer, epochs, backward)
    turns = Turns(port)
    total = 0
    while True:
        count, every = turns.next()
        if not count:
            return total
        for _ in range(count):
            loss = next(steps)
            total += 1
            if total % REPORT_EVERY == 0:
                value = loss.item()  # Whoever reports or not: a person looks at the loss now and then.
                if report is not None and every and total % every == 0:
                    report({"step": total, "loss": value})
        turns.done()


def _steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    epochs: Iterable[DataLoader[Any]],
    backward: Callable[[torch.Tensor], object],
) -> Iterator[torch.Tensor]:
    lossy = nn.CrossEntropyLoss()
    for loader in epochs:
        for rows, labels in loader:
            optimizer.zero_grad()
            loss = lossy(model(rows), labels)
            backward(loss)
            optimizer.step()
            yield loss.detach()
