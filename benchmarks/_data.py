"""The datasets that several benchmarks read, and how every contestant prepares the rows.

The data is generated from a seed. A contestant writes `rank_0.json` and `rank_1.json`: when each epoch began and ended,
the number of rows, and a sum that shows they were the right ones.
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
STORED_SIZE, IMAGE_SIZE = 256, 224
NUM_DISTINCT = 200
"""Number of different images. The others are repetitions, which take as long to decode."""

Batch = dict[str, Any]


# Generating the files


def write_tabular(directory: Path, num_rows: int, num_files: int, row_group_rows: int) -> None:
    """Write columns of float32, evenly split over the files."""
    directory.mkdir()
    for number, rows in enumerate(_split_evenly(num_rows, num_files)):
        values = np.random.default_rng(number).random((NUM_COLUMNS, rows), np.float32)
        table = pa.table(dict(zip(NAMES, values, strict=True)))
        pq.write_table(table, directory / f"part-{number:04d}.parquet", row_group_size=row_group_rows)


def write_join_tables(left: Path, right: Path, num_rows: int, num_files: int) -> None:
    """Write rows with a key and three numbers, and a table with each key once. There are four rows of a key."""
    num_keys = num_rows // 4
    shuffled = np.random.default_rng(0).permutation(num_rows)
    for directory, keys, names in ((left, shuffled % num_keys, "abc"), (right, np.arange(num_keys)[::-1], "x")):
        directory.mkdir()
        for number, part in enumerate(np.array_split(keys, num_files)):
            random = np.random.default_rng(number)
            table = pa.table({"id": part, **{name: random.random(len(part), np.float32) for name in names}})
            pq.write_table(table, directory / f"part-{number:04d}.parquet")


def write_query_table(directory: Path, num_rows: int, num_files: int) -> None:
    """Write rows with a key of 1,000, a number below 10, and a random `x`."""
    directory.mkdir()
    for number, rows in enumerate(_split_evenly(num_rows, num_files)):
        random = np.random.default_rng(number)
        columns = {
            "key": random.integers(0, 1000, rows),
            "number": random.integers(0, 10, rows),
            "x": random.random(rows),
        }
        pq.write_table(pa.table(columns), directory / f"part-{number:04d}.parquet")


def write_images(directory: Path, num_rows: int, num_files: int) -> None:
    """Write JPEGs as bytes, with a label."""
    directory.mkdir()
    encoded = [_jpeg(seed) for seed in range(min(NUM_DISTINCT, num_rows))]
    start = 0
    for number, rows in enumerate(_split_evenly(num_rows, num_files)):
        numbers = range(start, start + rows)
        start += rows
        table = pa.table({"jpeg": [encoded[n % len(encoded)] for n in numbers], "label": pa.array(numbers)})
        pq.write_table(table, directory / f"part-{number:04d}.parquet", row_group_size=128)


def _split_evenly(total: int, parts: int) -> list[int]:
    return [total * (number + 1) // parts - total * number // parts for number in range(parts)]


def _jpeg(seed: int) -> bytes:
    """An image with large shapes and some noise, like a photograph."""
    from PIL import Image

    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).resize(
        (STORED_SIZE, STORED_SIZE), Image.BICUBIC
    )
    noisy = np.asarray(coarse, np.int16) + random.integers(-12, 13, (STORED_SIZE, STORED_SIZE, 3), np.int16)
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "jpeg", quality=90)
    return file.getvalue()


# Preparing a batch


def stack_columns(batch: Mapping[str, Any]) -> Batch:
    """Stack all columns into one scaled matrix."""
    matrix = np.stack([batch[name] for name in NAMES], axis=1)
    matrix -= np.float32(0.5)
    matrix *= np.float32(2.0)
    return {"x": matrix}


def decode_images(batch: Mapping[str, Any]) -> Batch:
    """Decode and resize images for a network."""
    from PIL import Image

    images = np.empty((len(batch["jpeg"]), IMAGE_SIZE, IMAGE_SIZE, 3), np.float32)
    for row, data in enumerate(batch["jpeg"]):
        with Image.open(io.BytesIO(data)) as image:
            images[row] = np.asarray(image.resize((IMAGE_SIZE, IMAGE_SIZE)), np.float32)
    images /= np.float32(255)
    return {"x": images, "label": np.array(batch["label"])}


@dataclass(frozen=True)
class Case:
    prepare: Callable[[Mapping[str, Any]], Batch]
    columns: Sequence[str]
    batch_size: int
    read_rows: int
    """Rows that a plain reader takes from a file at a time."""


CASES = {"tabular": Case(stack_columns, NAMES, 1024, 62_500), "images": Case(decode_images, ["jpeg", "label"], 64, 64)}


def plain_batches(files: Sequence[Path], case: Case, rank: int, num_ranks: int) -> Iterator[Batch]:
    """Read batches without a library: every `num_ranks`-th file, piece by piece."""
    for path in files[rank::num_ranks]:
        with pq.ParquetFile(path) as file:
            for piece in file.iter_batches(case.read_rows, columns=list(case.columns), use_threads=False):
                names = zip(piece.schema.names, piece.columns, strict=True)
                ready = case.prepare({name: values.to_numpy(zero_copy_only=False) for name, values in names})
                for start in range(0, piece.num_rows, case.batch_size):
                    yield {name: values[start : start + case.batch_size] for name, values in ready.items()}


# Results of a contestant


def time_epoch(batches: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Iterate over all batches and sum one column."""
    began = time.perf_counter()
    rows, total = 0, 0.0
    for batch in batches:
        x = batch["x"]
        rows += len(x)
        total += float(x.reshape(len(x), -1)[:, 0].sum())
    return {"began": began, "ended": time.perf_counter(), "rows": rows, "sum": total}


def time_query(query: Callable[[], float], times: int) -> dict[str, Any]:
    seconds, answer = [], 0.0
    for _ in range(times):
        began = time.perf_counter()
        answer = query()
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds, "answer": answer}


def write_result(directory: str | Path, rank: int, results: Sequence[Mapping[str, float]] | Mapping[str, Any]) -> None:
    Path(directory, f"rank_{rank}.json").write_text(json.dumps(results))
