"""Tokenize and pack without Paceline. Arguments: directory, `plain` or `loader`, tokenizer, epochs, files.

Either two processes, each with its own files, or one with a torch DataLoader that has two workers.
"""

import multiprocessing
import sys

import torch
from _data import write_result
from _tokens import plain_batches, time_tokens
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Rows(IterableDataset):
    def __init__(self, files, tokenizer):
        self.files, self.tokenizer = files, tokenizer

    def __iter__(self):
        worker = get_worker_info()
        for batch in plain_batches(self.files[worker.id :: worker.num_workers], self.tokenizer):
            yield {name: torch.from_numpy(values) for name, values in batch.items()}


def take_epochs(rank, barrier, directory, tokenizer, epochs, files):
    done = []
    for _ in range(epochs):
        barrier.wait()
        done.append(time_tokens(plain_batches(files[rank::2], tokenizer)))
    write_result(directory, rank, done)


if __name__ == "__main__":
    directory, kind, tokenizer, epochs, *files = sys.argv[1:]
    if kind == "loader":
        loader = DataLoader(Rows(files, tokenizer), batch_size=None, num_workers=2, persistent_workers=True)
        write_result(directory, 0, [time_tokens(loader) for _ in range(int(epochs))])
        sys.exit()
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    arguments = (barrier, directory, tokenizer, int(epochs), files)
    processes = [context.Process(target=take_epochs, args=(rank, *arguments)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode) for process in processes))
