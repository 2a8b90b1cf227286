"""The training loop that several benchmarks time, the same for ours and the peers: a model, data in memory.

Runs inside the workers. Rank 0 receives over a socket how many steps to train and how often to report, and answers how
long they took, so that several contestants running at the same time can take turns.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

REPORT_EVERY = 10

# Features and hidden layers: 0.4 million parameters, and 2.1 million.
MODELS = {"small": (256, (512, 512)), "middle": (512, (1024, 1024, 512))}


def make_model(name: str) -> nn.Module:
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


def repeat_epochs(loader: DataLoader[Any], sampler: DistributedSampler[Any]) -> Iterator[DataLoader[Any]]:
    """The epochs of a bare loop, which has to tell the sampler that one begins."""
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield loader


class Turns:
    """Receives instructions: rank 0 reads them from the socket and broadcasts them."""

    def __init__(self, port: int) -> None:
        first = dist.get_rank() == 0
        self._line: TextIO | None = socket.create_connection(("127.0.0.1", port)).makefile("rw") if first else None
        pids: list[int | None] = [None] * dist.get_world_size()
        dist.all_gather_object(pids, os.getpid())
        self._send(" ".join(map(str, pids)))

    def next(self) -> tuple[int, int]:
        """The number of steps (0: stop) and how often to report (0: never)."""
        words = (self._line.readline() or "0 0").split() if self._line else ("0", "0")
        numbers = torch.tensor([int(word) for word in words])
        dist.broadcast(numbers, 0)
        dist.barrier()
        self._began = time.perf_counter()
        return int(numbers[0]), int(numbers[1])

    def done(self) -> None:
        self._send(str(time.perf_counter() - self._began))

    def _send(self, text: str) -> None:
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
    """Train when instructed, until instructed to stop. Returns the number of steps."""
    steps = iterate_steps(model, optimizer, epochs, backward)
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
                value = loss.item()  # All contestants read the loss now and then, as a person would.
                if report is not None and every and total % every == 0:
                    report({"step": total, "loss": value})
        turns.done()


def iterate_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    epochs: Iterable[DataLoader[Any]],
    backward: Callable[[torch.Tensor], object],
) -> Iterator[torch.Tensor]:
    """Train for as long as there are epochs; yield the loss after each step."""
    loss_fn = nn.CrossEntropyLoss()
    for loader in epochs:
        for rows, labels in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(rows), labels)
            backward(loss)
            optimizer.step()
            yield loss.detach()
