"""The same loops without a library. Arguments: a directory, a question, and its configuration as JSON.

`tokens`: the compiled GPT. `pictures`: the ResNet fed by a DataLoader, `made`: by one batch already on the device.
`decoded`: images decoded by plain processes and discarded. `recovery`: for torchrun, which restarts the script.
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
from _gpu import TINY, Gpt, Size, gpt_rates, make_image_model, train_image_epoch, write_result
from _pictures import decode_image
from torch.utils.data import DataLoader, Dataset

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def train_gpt(directory, config):
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    size = TINY if config["tiny"] else Size()
    model = Gpt(size).to(DEVICE)
    if not config["tiny"]:
        model = torch.compile(model)
    rates = gpt_rates(model, size, DEVICE, lambda metrics: None, config["turns"], config["steps"])
    write_result(directory, {"rates": rates})


class Images(Dataset):
    """The encoded images in memory, shared by forked processes."""

    def __init__(self, files):
        table = pq.read_table(files)
        self.jpegs, self.labels = table["jpeg"].combine_chunks(), table["label"].combine_chunks().to_numpy()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return {"x": torch.from_numpy(decode_image(self.jpegs[row].as_py())), "label": int(self.labels[row])}


def move_to_device(loader):
    for batch in loader:
        yield {name: value.to(DEVICE, non_blocking=True) for name, value in batch.items()}


def train_on_images(directory, config):
    model, optimizer = make_image_model(DEVICE)
    loader = DataLoader(
        Images(config["files"]),
        batch_size=config["batch_size"],
        num_workers=config["processes"],
        pin_memory=DEVICE.type == "cuda",
        persistent_workers=True,
        prefetch_factor=4,
    )
    epochs = [train_image_epoch(model, optimizer, move_to_device(loader), DEVICE) for _ in range(config["epochs"])]
    write_result(directory, {"epochs": epochs})


def train_on_generated(directory, config):
    model, optimizer = make_image_model(DEVICE)
    size = config["batch_size"]
    one = {
        "x": torch.randint(256, (size, 224, 224, 3), dtype=torch.uint8, device=DEVICE),
        "label": torch.zeros(size, dtype=torch.int64, device=DEVICE),
    }
    batches = [one] * (config["rows"] // size)
    epochs = [train_image_epoch(model, optimizer, batches, DEVICE) for _ in range(config["epochs"])]
    write_result(directory, {"epochs": epochs})


def decode_part(jpegs):
    for data in jpegs:
        decode_image(data)


def decode_only(directory, config):
    jpegs = pq.read_table(config["files"], columns=["jpeg"])["jpeg"].to_pylist()
    parts = [jpegs[start :: config["processes"]] for start in range(config["processes"])]
    epochs = []
    for _ in range(config["epochs"]):
        processes = [multiprocessing.Process(target=decode_part, args=(part,)) for part in parts]
        began = time.perf_counter()
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert all(process.exitcode == 0 for process in processes), "a decoding process failed"
        epochs.append({"pictures": len(jpegs), "seconds": time.perf_counter() - began, "waited": 1.0})
    write_result(directory, {"epochs": epochs})


def recover(directory, config):
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
    write_result(directory, {"seconds": time.time() - float(lost.read_text())})
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    # Images are decoded in processes that are forked before there is a CUDA context.
    multiprocessing.set_start_method("fork")
    questions = {
        "tokens": train_gpt,
        "pictures": train_on_images,
        "made": train_on_generated,
        "decoded": decode_only,
        "recovery": recover,
    }
    questions[sys.argv[2]](sys.argv[1], json.loads(sys.argv[3]))
