"""An epoch, and a resume in its middle. Arguments: a file to tell in, how many files, their directory."""

import json
import sys
import time
from pathlib import Path

import torch  # noqa: F401  whoever takes batches of tensors has it: its import is not what is asked
from _data import stacked

import paceline.data

BATCH = 1024


def first_of(iterator):
    """Seconds to the first batch, and all the batches."""
    began = time.perf_counter()
    batches = iter(iterator.iter_torch_batches(batch_size=BATCH))
    first = next(batches)
    return time.perf_counter() - began, first, batches


if __name__ == "__main__":
    told, count, directory = sys.argv[1:]
    files = sorted(map(str, Path(directory).iterdir()))[: int(count)]
    began = time.perf_counter()
    dataset = paceline.data.read_parquet(files).map_batches(stacked, batch_format="numpy")
    num_rows = dataset.count()
    opened_s = time.perf_counter() - began
    place = round(0.9 * -(-num_rows // BATCH))
    iterator = dataset.iterator()
    began = time.perf_counter()
    first_s, first, batches = first_of(iterator)
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
        seconds, first, batches = first_of(again)
        found = len(first["x"]) + sum(len(batch["x"]) for batch in batches)
        assert found == left, f"{found} rows after the place, not {left}"
        took.append(seconds)
    said = {"rows": rows, "sum": total, "opened": opened_s, "first": first_s, "epoch": epoch_s, "resume": took}
    Path(told).write_text(json.dumps(said))
