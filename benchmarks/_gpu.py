"""What ours and the bare loops train on a GPU, and how it is timed: a GPT of 124 million parameters and a ResNet.

A contestant provides the model on its device, the batches and a report function; the loop is the same for all.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS = 768, 12
READ_EVERY = 10
"""Steps between two readings of the loss. Each waits for the GPU, so all contestants read equally often."""


# A GPT


@dataclass(frozen=True)
class Size:
    layers: int = 12
    context: int = 1024
    sequences: int = 16
    """Sequences in a batch."""
    vocabulary: int = 50_304


TINY = Size(1, 64, 2, 512)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(self.before_attention(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attention = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.before_mlp(x))


class Gpt(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(size.vocabulary, WIDTH), nn.Embedding(size.context, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(size.layers)))
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, size.vocabulary, bias=False)
        self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        logits = self.head(self.last(self.blocks(x)))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gpt_rates(
    model: nn.Module,
    size: Size,
    device: torch.device,
    report: Callable[[dict[str, Any]], object],
    turns: int,
    steps: int,
) -> list[float]:
    """Tokens a second in each turn, after a warm-up that compiles."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    tokens = torch.randint(size.vocabulary, (8, size.sequences, size.context + 1), device=device)
    batches = itertools.cycle(tokens)
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        batch = next(batches)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if count % READ_EVERY == 0:
            report({"step": count, "loss": loss.item()})

    for _ in range(2 * READ_EVERY):
        step()
    rates = []
    for _ in range(turns):
        wait_for(device)
        began = time.perf_counter()
        for _ in range(steps):
            step()
        wait_for(device)
        rates.append(steps * size.sequences * size.context / (time.perf_counter() - began))
    return rates


# A ResNet


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        same = stride == 1 and before == after
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.path(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Eighteen layers, for images of 224 x 224 bytes, channels last."""

    def __init__(self) -> None:
        super().__init__()
        stages = [
            nn.Sequential(Residual(before, after, stride), Residual(after, after, 1))
            for before, after, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        ]
        self.layers = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
            *stages,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(512, 1000),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # Bytes are copied to the device: a quarter of the floats they become there.
        return self.layers((images.permute(0, 3, 1, 2).float() - 127.5) / 64)


def train_image_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Mapping[str, torch.Tensor]],
    device: torch.device,
) -> dict[str, float]:
    """Train on all batches: number of images, seconds, and the share of time the GPU was idle."""
    wait_for(device)
    began = time.perf_counter()
    num_images, turns, until_first = 0, [], 0.0
    for batch in batches:
        until_first = until_first or time.perf_counter() - began
        first, last = make_event(device), make_event(device)
        first.record()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = functional.cross_entropy(model(batch["x"]), batch["label"] % 1000)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        last.record()
        turns.append((first, last))
        num_images += len(batch["x"])
    wait_for(device)
    seconds = time.perf_counter() - began
    busy = sum(first.elapsed_time(last) for first, last in turns) / 1000
    return {
        "pictures": num_images,
        "seconds": seconds,
        "waited": max(0.0, 1 - busy / seconds),
        "until_first": until_first,
    }


def make_image_model(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = ResNet().to(device, memory_format=torch.channels_last)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


# Timing and results


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def make_event(device: torch.device) -> Any:
    """A CUDA event, or one of the host, so that the scripts can be tried without a GPU."""
    return torch.cuda.Event(enable_timing=True) if device.type == "cuda" else _HostEvent()


class _HostEvent:
    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, later: _HostEvent) -> float:
        return 1000 * (later.at - self.at)


def write_result(directory: str | Path, result: Mapping[str, Any]) -> None:
    """Write the result, which proves that the script ran."""
    Path(directory, "result.json").write_text(json.dumps(result))


def read_result(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "result.json").read_text())


def middle(samples: Iterable[float]) -> float:
    return statistics.median(samples)
