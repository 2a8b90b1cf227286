"""A torch DataLoader that resumes by reading consumed rows again. Arguments: directory, files, times, positions."""

import json
import sys
import time
from pathlib import Path

import pandas  # noqa: F401  imported before forking, since pyarrow imports it on the first batch
import pyarrow
import torch
from _data import CASES, plain_batches
from torch.utils.data import DataLoader, IterableDataset


class Rows(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        pyarrow.set_cpu_count(1)
        for batch in plain_batches(self.files, CASES["tabular"], 0, 1):
            yield {name: torch.from_numpy(values) for name, values in batch.items()}


if __name__ == "__main__":
    directory, files, times, *places = sys.argv[1:]
    torch.set_num_threads(1)
    paths = sorted(Path(files).iterdir())
    num_batches = sum(1 for _ in DataLoader(Rows(paths), batch_size=None, num_workers=1))
    took = {place: [] for place in places}
    for _ in range(int(times)):
        for place in places:
            skipped = min(round(float(place) * num_batches), num_batches - 1)
            began = time.perf_counter()
            batches = iter(DataLoader(Rows(paths), batch_size=None, num_workers=1))
            for _ in range(skipped + 1):
                next(batches)
            took[place].append(time.perf_counter() - began)
            del batches
    Path(directory, "took.json").write_text(json.dumps(took))
