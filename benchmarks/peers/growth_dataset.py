"""The same with a torch DataLoader of two processes, which resumes by reading the consumed rows again."""

import json
import sys
import time
from pathlib import Path

import pandas  # noqa: F401  imported before forking, since pyarrow imports it on the first batch
import pyarrow
import torch
from _data import CASES, plain_batches
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

BATCH = 1024


class Rows(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        worker = get_worker_info()
        pyarrow.set_cpu_count(1)
        for batch in plain_batches(self.files, CASES["tabular"], worker.id, worker.num_workers):
            yield {name: torch.from_numpy(values) for name, values in batch.items()}


def time_epoch(files, skipped):
    """Seconds to the first batch that is not skipped and to the last, the number of rows and their sum."""
    began = time.perf_counter()
    loader = DataLoader(Rows(files), batch_size=None, num_workers=2, multiprocessing_context="fork")
    rows, total, first_s = 0, 0.0, None
    for number, batch in enumerate(loader):
        if number >= skipped:
            if first_s is None:
                first_s = time.perf_counter() - began
            rows += len(batch["x"])
            total += float(batch["x"][:, 0].sum())
    return first_s, time.perf_counter() - began, rows, total


if __name__ == "__main__":
    result_path, count, directory = sys.argv[1:]
    torch.set_num_threads(1)
    files = sorted(Path(directory).iterdir())[: int(count)]
    first_s, epoch_s, rows, total = time_epoch(files, 0)
    resume_s, *_ = time_epoch(files, round(0.9 * -(-rows // BATCH)))
    result = {"rows": rows, "sum": total, "first": first_s, "epoch": epoch_s, "resume": [resume_s]}
    Path(result_path).write_text(json.dumps(result))
