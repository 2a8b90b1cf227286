"""Reads an epoch and resumes near its end. Arguments: the result file, how many data files, their directory."""

import json
import sys
import time
from pathlib import Path

import torch  # noqa: F401  imported before timing starts
from _data import stack_columns

import paceline.data

BATCH = 1024


def time_first_batch(iterator):
    """Seconds to the first batch, that batch, and the remaining ones."""
    began = time.perf_counter()
    batches = iter(iterator.iter_torch_batches(batch_size=BATCH))
    first = next(batches)
    return time.perf_counter() - began, first, batches


if __name__ == "__main__":
    result_path, count, directory = sys.argv[1:]
    files = sorted(map(str, Path(directory).iterdir()))[: int(count)]
    began = time.perf_counter()
    dataset = paceline.data.read_parquet(files).map_batches(stack_columns, batch_format="numpy")
    num_rows = dataset.count()
    opened_s = time.perf_counter() - began
    place = round(0.9 * -(-num_rows // BATCH))
    iterator = dataset.iterator()
    began = time.perf_counter()
    first_s, first, batches = time_first_batch(iterator)
    rows, total, number = len(first["x"]), float(first["x"][:, 0].sum()), 1
    state = None
    for batch in batches:
        number += 1
        rows += len(batch["x"])
        total += float(batch["x"][:, 0].sum())
        if number == place:
            state = iterator.get_state()
    epoch_s = time.perf_counter() - began
    left = num_rows - place * BATCH
    took = []
    for _ in range(3):
        again = dataset.iterator()
        again.set_state(state)
        seconds, first, batches = time_first_batch(again)
        num_rows_left = len(first["x"]) + sum(len(batch["x"]) for batch in batches)
        assert num_rows_left == left, f"{num_rows_left} rows after the position, not {left}"
        took.append(seconds)
    result = {"rows": rows, "sum": total, "opened": opened_s, "first": first_s, "epoch": epoch_s, "resume": took}
    Path(result_path).write_text(json.dumps(result))
