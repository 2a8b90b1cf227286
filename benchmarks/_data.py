"""The datasets that several benchmarks read, and how each contestant has to prepare the rows.

All is made from a seed. A contestant leaves `rank_0.json` and `rank_1.json`: for each epoch when it began and ended,
how many rows came, and a sum over them, by which one sees that they were the right ones.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NUM_COLUMNS = 32
NAMES = [f"c{number:02d}" for number in range(NUM_COLUMNS)]
STORED, WANTED = 256, 224
DISTINCT = 200
"""As many different pictures there are; the others are the same again, which takes as long to decode."""

Batch = dict[str, Any]


# Made once


def write_tabular(directory: Path, num_rows: int, num_files: int, row_group_rows: int) -> None:
    """Columns of float32, as many rows in each file."""
    directory.mkdir()
    for number, rows in enumerate(_even(num_rows, num_files)):
        values = np.random.default_rng(number).random((NUM_COLUMNS, rows), np.float32)
        table = pa.table(dict(zip(NAMES, values, strict=True)))
        pq.write_table(table, directory / f"part-{number:04d}.parquet", row_group_size=row_group_rows)


def write_pictures(directory: Path, num_rows: int, num_files: int) -> None:
    """JPEGs as bytes, and a label."""
    directory.mkdir()
    encoded = [_jpeg(seed) for seed in range(min(DISTINCT, num_rows))]
    start = 0
    for number, rows in enumerate(_even(num_rows, num_files)):
        numbers = range(start, start + rows)
        start += rows
        table = pa.table({"jpeg": [encoded[n % len(encoded)] for n in numbers], "label": pa.array(numbers)})
        pq.write_table(table, directory / f"part-{number:04d}.parquet", row_group_size=128)


def _even(total: int, parts: int) -> list[int]:
    return [total * (number + 1) // parts - total * number // parts for number in range(parts)]


def _jpeg(seed: int) -> bytes:
    """A picture with large shapes and some noise, as photographs have."""
    from PIL import Image

    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).resize((STORED, STORED), Image.BICUBIC)
    noisy = np.asarray(coarse, np.int16) + random.integers(-12, 13, (STORED, STORED, 3), np.int16)
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "jpeg", quality=90)
    return file.getvalue()


# What is done to every batch


def stacked(batch: Mapping[str, Any]) -> Batch:
    """One matrix of all columns, scaled."""
    matrix = np.stack([batch[name] for name in NAMES], axis=1)
    matrix -= np.float32(0.5)
    matrix *= np.float32(2.0)
    return {"x": matrix}


def decoded(batch: Mapping[str, Any]) -> Batch:
    """Pictures as arrays of the size that a network wants."""
    from PIL import Image

    pictures = np.empty((len(batch["jpeg"]), WANTED, WANTED, 3), np.float32)
    for row, data in enumerate(batch["jpeg"]):
        with Image.open(io.BytesIO(data)) as picture:
            pictures[row] = np.asarray(picture.resize((WANTED, WANTED)), np.float32)
    pictures /= np.float32(255)
    return {"x": pictures, "label": np.array(batch["label"])}


@dataclass(frozen=True)
class Case:
    prepare: Callable[[Mapping[str, Any]], Batch]
    columns: Sequence[str]
    batch_size: int
    read_rows: int
    """How many rows a contestant without batches of its own takes from a file at a time."""


CASES = {"tabular": Case(stacked, NAMES, 1024, 62_500), "images": Case(decoded, ["jpeg", "label"], 64, 64)}


def plain_batches(files: Sequence[Path], case: Case, rank: int, num_ranks: int) -> Iterator[Batch]:
    """What one writes without a library: every other file, a piece at a time, cut into batches."""
    for path in files[rank::num_ranks]:
        with pq.ParquetFile(path) as file:
            for piece in file.iter_batches(case.read_rows, columns=list(case.columns), use_threads=False):
                names = zip(piece.schema.names, piece.columns, strict=True)
                ready = case.prepare({name: values.to_numpy(zero_copy_only=False) for name, values in names})
                for start in range(0, piece.num_rows, case.batch_size):
                    yield {name: values[start : start + case.batch_size] for name, values in ready.items()}


# What a contestant says


def timed_epoch(batches: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Take all batches and look at each."""
    began = time.perf_counter()
    rows, total = 0, 0.0
    for batch in batches:
        x = batch["x"]
        rows += len(x)
        total += float(x.reshape(len(x), -1)[:, 0].sum())
    return {"began": began, "ended": time.perf_counter(), "rows": rows, "sum": total}


def leave(directory: str | Path, rank: int, epochs: Sequence[Mapping[str, float]]) -> None:
    Path(directory, f"rank_{rank}.json").write_text(json.dumps(epochs))
