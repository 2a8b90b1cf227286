"""A Gaussian process over hyperparameters with forgetting: old observations count less than recent ones.

    k(x, t; x', t') = exp(-|x - x'|² / 2l²) (1 - e)^(|t - t'| / 2)

A row holds the chosen values, between 0 and 1, and their context; t counts intervals. Length l, forgetting e and noise
are taken from a small table, by maximum likelihood of the observations.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LENGTHS = (0.1, 0.25, 0.6)
FORGETTINGS = (0.0, 0.1, 0.4)
NOISES = (0.01, 0.2)
MAX_ROWS = 80
"""Older rows are dropped: they are nearly forgotten, and the cost is cubic."""


@dataclass(frozen=True)
class Kernel:
    length: float
    forgetting: float
    noise: float

    def __call__(self, rows: Array, times: Array, others: Array, other_times: Array) -> Array:
        squared = ((rows[:, None, :] - others[None, :, :]) ** 2).sum(axis=2)
        apart = np.abs(times[:, None] - other_times[None, :])
        similarity: Array = np.exp(-squared / (2 * self.length**2)) * (1 - self.forgetting) ** (apart / 2)
        return similarity


@dataclass(frozen=True)
class GaussianProcess:
    """The observations and the kernel that fits them best. Values have mean 0 and standard deviation 1."""

    rows: Array
    times: Array
    values: Array
    kernel: Kernel

    @classmethod
    def fit(cls, rows: Array, times: Array, values: Array) -> GaussianProcess:
        rows, times, values = rows[-MAX_ROWS:], times[-MAX_ROWS:], values[-MAX_ROWS:]
        spread = float(values.std())
        values = (values - values.mean()) / (spread if spread > 0 else 1.0)
        kernels = [Kernel(*chosen) for chosen in itertools.product(LENGTHS, FORGETTINGS, NOISES)]
        # The first in a tie: with too little data, the first entry of the table.
        best = max(kernels, key=lambda kernel: _log_likelihood(kernel, rows, times, values))
        return cls(rows, times, values, best)

    def mean_and_deviation(self, rows: Array, time: float, pending: Array) -> tuple[Array, Array]:
        """Predict at `time`. Pending points, chosen but not observed yet, lower the deviation and leave the mean."""
        times = np.full(len(rows), time)
        root = _cholesky_factor(self.kernel, self.rows, self.times)
        between = self.kernel(self.rows, self.times, rows, times)
        mean: Array = between.T @ _solve_with_factor(root, self.values)
        all_rows = np.concatenate([self.rows, pending])
        all_times = np.concatenate([self.times, np.full(len(pending), time)])
        reduced = np.linalg.solve(
            _cholesky_factor(self.kernel, all_rows, all_times), self.kernel(all_rows, all_times, rows, times)
        )
        deviation: Array = np.sqrt(np.maximum(1.0 - (reduced**2).sum(axis=0), 1e-12))
        return mean, deviation


def maximize_upper_bound(
    process: GaussianProcess, time: float, context: Array, pending: Array, generator: Any
) -> Array:
    """Return the point between 0 and 1 with the highest upper confidence bound, by random search and refinement."""
    size = process.rows.shape[1] - len(context)
    weight = math.sqrt(0.2 * size * math.log(2 * len(process.rows) + 2))

    def upper_bound(points: Array) -> Array:
        rows = np.concatenate([points, np.tile(context, (len(points), 1))], axis=1)
        mean, deviation = process.mean_and_deviation(rows, time, pending)
        return mean + weight * deviation

    points = np.concatenate([generator.random((200 * size, size)), process.rows[-20:, :size]])
    for radius in (0.1, 0.03, 0.01):
        heights = upper_bound(points)
        best = points[np.argsort(-heights, kind="stable")[:5]]
        nearby = np.repeat(best, 10, axis=0) + generator.normal(0.0, radius, (10 * len(best), size))
        points = np.concatenate([best, np.clip(nearby, 0.0, 1.0)])
    best_point: Array = points[int(np.argmax(upper_bound(points)))]
    return best_point


def _cholesky_factor(kernel: Kernel, rows: Array, times: Array) -> Array:
    covariance = kernel(rows, times, rows, times)
    return np.asarray(np.linalg.cholesky(covariance + (kernel.noise + 1e-8) * np.eye(len(rows))), dtype=np.float64)


def _solve_with_factor(root: Array, values: Array) -> Array:
    solved: Array = np.linalg.solve(root.T, np.linalg.solve(root, values))
    return solved


def _log_likelihood(kernel: Kernel, rows: Array, times: Array, values: Array) -> float:
    root = _cholesky_factor(kernel, rows, times)
    return float(-0.5 * values @ _solve_with_factor(root, values) - np.log(np.diag(root)).sum())
