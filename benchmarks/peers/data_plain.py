"""Two processes read and prepare their own rows. Arguments: directory, kind, files, epochs, loader.

The kind is `tabular` or `images`. With loader (1), each has a torch DataLoader with one worker process.
"""

import multiprocessing
import sys
from pathlib import Path

import pandas  # noqa: F401  imported before forking, since pyarrow imports it on the first batch
import pyarrow
import torch
from _data import CASES, plain_batches, time_epoch, write_result
from torch.utils.data import DataLoader, IterableDataset


class Rows(IterableDataset):
    def __init__(self, files, name, rank):
        self.files, self.name, self.rank = files, name, rank

    def __iter__(self):
        for batch in plain_batches(sorted(Path(self.files).iterdir()), CASES[self.name], self.rank, 2):
            yield {name: torch.from_numpy(values) for name, values in batch.items()}


def main(rank, barrier, directory, name, files, epochs, loader):
    torch.set_num_threads(1)
    pyarrow.set_cpu_count(1)
    batches = Rows(files, name, rank)
    if loader:
        batches = DataLoader(batches, batch_size=None, num_workers=1, persistent_workers=True)
    done = []
    for _ in range(epochs):
        barrier.wait()
        done.append(time_epoch(batches))
    write_result(directory, rank, done)


if __name__ == "__main__":
    directory, name, files, epochs, loader = sys.argv[1:]
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    arguments = (barrier, directory, name, files, int(epochs), int(loader))
    processes = [context.Process(target=main, args=(rank, *arguments)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in processes))
