"""The same loops with nothing around them. Arguments: a directory, a question, and what that needs (as JSON).

`tokens`: the compiled GPT. `pictures`: the ResNet fed by a DataLoader, `made`: by one batch that is on the
device already. `decoded`: pictures decoded by plain processes and thrown away. `recovery` is for torchrun, which starts
it again.
"""

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import torch
from _gpu import TINY, Gpt, Size, gpt_rates, leave, picture_epoch, picture_model
from _pictures import decoded_one
from torch.utils.data import DataLoader, Dataset

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def tokens(directory, told):
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    size = TINY if told["tiny"] else Size()
    model = Gpt(size).to(DEVICE)
    if not told["tiny"]:
        model = torch.compile(model)
    rates = gpt_rates(model, size, DEVICE, lambda metrics: None, told["turns"], told["steps"])
    leave(directory, {"rates": rates})


class Pictures(Dataset):
    """All files as they are, in memory: forked processes share them."""

    def __init__(self, files):
        table = pq.read_table(files)
        self.jpegs, self.labels = table["jpeg"].combine_chunks(), table["label"].combine_chunks().to_numpy()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return {"x": torch.from_numpy(decoded_one(self.jpegs[row].as_py())), "label": int(self.labels[row])}


def on_device(loader):
    for batch in loader:
        yield {name: value.to(DEVICE, non_blocking=True) for name, value in batch.items()}


def pictures(directory, told):
    model, optimizer = picture_model(DEVICE)
    loader = DataLoader(
        Pictures(told["files"]),
        batch_size=told["batch_size"],
        num_workers=told["processes"],
        pin_memory=DEVICE.type == "cuda",
        persistent_workers=True,
        prefetch_factor=4,
    )
    found = [picture_epoch(model, optimizer, on_device(loader), DEVICE) for _ in range(told["epochs"])]
    leave(directory, {"epochs": found})


def made(directory, told):
    model, optimizer = picture_model(DEVICE)
    size = told["batch_size"]
    one = {
        "x": torch.randint(256, (size, 224, 224, 3), dtype=torch.uint8, device=DEVICE),
        "label": torch.zeros(size, dtype=torch.int64, device=DEVICE),
    }
    batches = [one] * (told["rows"] // size)
    found = [picture_epoch(model, optimizer, batches, DEVICE) for _ in range(told["epochs"])]
    leave(directory, {"epochs": found})


def decode_part(jpegs):
    for data in jpegs:
        decoded_one(data)


def decoded(directory, told):
    jpegs = pq.read_table(told["files"], columns=["jpeg"])["jpeg"].to_pylist()
    parts = [jpegs[start :: told["processes"]] for start in range(told["processes"])]
    epochs = []
    for _ in range(told["epochs"]):
        processes = [multiprocessing.Process(target=decode_part, args=(part,)) for part in parts]
        began = time.perf_counter()
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert all(process.exitcode == 0 for process in processes), "a process that decodes has failed"
        epochs.append({"pictures": len(jpegs), "seconds": time.perf_counter() - began, "waited": 1.0})
    leave(directory, {"epochs": epochs})


def recovery(directory, told):
    torch.distributed.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    state, lost = Path(directory, "state.pt"), Path(directory, "lost")
    weights = torch.ones(1000, device=DEVICE)
    if not lost.exists():
        weights = weights @ torch.ones(1000, 1000, device=DEVICE)
        torch.save({"weights": weights}, state)
        lost.write_text(repr(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    weights = torch.load(state, map_location=DEVICE)["weights"]
    assert weights.sum().item() == 1e6
    leave(directory, {"seconds": time.time() - float(lost.read_text())})
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    # Pictures are decoded in processes that are forked, before there is a CUDA context.
    multiprocessing.set_start_method("fork")
    questions = {"tokens": tokens, "pictures": pictures, "made": made, "decoded": decoded, "recovery": recovery}
    questions[sys.argv[2]](sys.argv[1], json.loads(sys.argv[3]))
