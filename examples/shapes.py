"""Pictures to learn from, made on the spot: one shape in each of 28 x 28 pixels, moved, turned, dimmed, under noise.

The same seed gives the same pictures on every machine; another seed gives other pictures of the same kind.
"""

import numpy as np
import torch
from torch.utils.data import TensorDataset

CLASSES = ("disc", "ring", "half disc", "square", "frame", "triangle", "cross", "bar")
SIZE = 28


def shapes(num_samples: int, *, seed: int) -> TensorDataset:
    """A dataset of (picture, number of its class): float32 of shape (1, 28, 28), and int64."""
    random = np.random.default_rng(seed)
    labels = random.integers(len(CLASSES), size=num_samples)
    pictures = np.empty((num_samples, 1, SIZE, SIZE), np.float32)
    for start in range(0, num_samples, 1000):
        part = slice(start, start + 1000)
        pictures[part, 0] = _drawn(labels[part], random)
    return TensorDataset(torch.from_numpy(pictures), torch.from_numpy(labels))


def _drawn(labels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    def each(low: float, high: float) -> np.ndarray:
        """One number for each picture."""
        return random.uniform(low, high, (len(labels), 1, 1)).astype(np.float32)

    y, x = np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j].astype(np.float32)
    x, y = x - each(-0.25, 0.25), y - each(-0.25, 0.25)
    angle, scale = each(-0.6, 0.6), each(0.5, 0.7)
    u = (np.cos(angle) * x + np.sin(angle) * y) / scale
    v = (np.cos(angle) * y - np.sin(angle) * x) / scale

    radius = np.hypot(u, v)
    largest, smallest = np.maximum(abs(u), abs(v)), np.minimum(abs(u), abs(v))
    inside = (
        radius < 1,
        (radius < 1) & (radius > 0.6),
        (radius < 1) & (v > -0.1),
        largest < 0.85,
        (largest < 0.85) & (largest > 0.5),
        (v > -0.6) & (v < 1 - 1.7 * abs(u)),
        (largest < 1) & (smallest < 0.25),
        (abs(u) < 1) & (abs(v) < 0.3),
    )
    shape = np.choose(labels[:, None, None], inside)
    noise = random.normal(0, 0.2, shape.shape).astype(np.float32)
    return shape * each(0.5, 1) + noise
