"""Rows a second that two workers receive: ours, plain processes, torch's DataLoader and Ray, one after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from _measure import Bench, check, note, python, read_rank_results

EPOCHS = 3
"""Epochs of a run. The first also starts processes and fills caches, so the best of the others counts."""
TIMEOUT_S = 240.0
PLAIN, LOADER, RAY = "plain processes", "DataLoader", "Ray Data"

Epoch = Mapping[str, float]
"""The result of one rank."""


class DeliveryRates:
    """Rows a second of each contestant, run by run."""

    def __init__(self, bench: Bench, case: str, files: Path, num_rows: int) -> None:
        self.bench, self.case, self.files, self.num_rows = bench, case, files, num_rows
        self.rates: dict[str, list[float]] = defaultdict(list)
        self.first: dict[str, list[float]] = defaultdict(list)
        self._sums: list[float] = []

    def take_turns(self) -> None:
        for number in self.bench.rounds():
            self._run("ours", python, "ours/data.py", 0)
            self._run(PLAIN, python, "peers/data_plain.py", 0)
            self._run(LOADER, python, "peers/data_plain.py", 1)
            if self.bench.takes_part("ray", number):
                self._run(RAY, partial(self.bench.peer, "ray"), "peers/ray_data.py", 0)

    def peers(self, *names: str) -> dict[str, list[float]]:
        return {name: self.rates[name] for name in names if self.rates[name]}

    def notes(self) -> dict[str, str]:
        return {"first epochs": ", ".join(f"{name} {note(rates, '/s')}" for name, rates in self.first.items())}

    def _run(self, name: str, command: Any, script: str, *arguments: object) -> None:
        directory = self.bench.directory(name.replace(" ", "-"))
        self.bench.run(
            command(script, directory, self.case, self.files, EPOCHS, *arguments),
            directory,
            {"OMP_NUM_THREADS": "1"},
            timeout_s=TIMEOUT_S,
        )
        epochs = self.check_epochs(name, read_rank_results(directory))
        rates = [self.num_rows / epoch_seconds(ranks) for ranks in epochs]
        self.first[name].append(rates[0])
        self.rates[name].append(max(rates[1:]))

    def check_epochs(self, name: str, ranks: Sequence[Sequence[Epoch]]) -> list[tuple[Epoch, ...]]:
        """Check that all the right rows arrived; return the epochs, each by rank."""
        epochs = list(zip(*ranks, strict=True))
        for number, epoch in enumerate(epochs):
            rows = sum(rank["rows"] for rank in epoch)
            check(rows == self.num_rows, f"{name}: epoch {number} delivered {rows:.0f} of {self.num_rows} rows")
            total = sum(rank["sum"] for rank in epoch)
            self._sums.append(total)
            right = abs(total - self._sums[0]) <= 1e-3 * (abs(self._sums[0]) + self.num_rows**0.5)
            check(right, f"{name}: epoch {number} delivered other rows: their sum is {total}, not {self._sums[0]}")
        return epochs


def epoch_seconds(ranks: Sequence[Epoch]) -> float:
    """Seconds from the first rank's start to the last rank's end."""
    return max(rank["ended"] for rank in ranks) - min(rank["began"] for rank in ranks)
