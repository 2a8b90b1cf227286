"""One worker with the GPU, if there is one. Arguments: a directory, a question, and its configuration as JSON.

`tokens`: a compiled GPT. `pictures`: a ResNet fed by `paceline.data`. `checkpoint`: GPU state, saved in several ways in
turn. `recovery`: a worker killed after its first checkpoint.
"""
# ruff: noqa: I001

import json
import mmap
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import paceline.data
from paceline import train
from paceline.train import Checkpoint, CheckpointUploadMode, RunConfig, ScalingConfig
from paceline.train.torch import TorchConfig, TorchTrainer, get_device, prepare_model
import torch
import torch.distributed.checkpoint as dcp
from _disk import write_directly
from _gpu import TINY, Gpt, Size, gpt_rates, write_result, train_image_epoch, make_image_model, wait_for
from _pictures import decode_batch


def train_gpt(config):
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    size = TINY if config["tiny"] else Size()
    model = prepare_model(Gpt(size))
    if not config["tiny"]:
        model = torch.compile(model)
    rates = gpt_rates(model, size, get_device(), train.report, config["turns"], config["steps"])
    write_result(config["directory"], {"rates": rates})


def train_on_images(config):
    device = get_device()
    model, optimizer = make_image_model(device)
    shard = train.get_dataset_shard("train")
    epochs = []
    for _ in range(config["epochs"]):
        batches = shard.iter_torch_batches(batch_size=config["batch_size"])
        epochs.append(train_image_epoch(model, optimizer, batches, device))
        train.report(epochs[-1])
    write_result(config["directory"], {"epochs": epochs, "stages": str(shard.stats())})


def time_checkpoints(config):
    device, gigabytes, parts = get_device(), config["gigabytes"], 32
    state = {f"w{n}": torch.randn(int(gigabytes * 1e9) // 4 // parts, device=device) for n in range(parts)}
    times = {name: [] for name in ("copy", "ours returned", "ours", "committed", "torch.save", "DCP async")}
    host = [torch.empty(t.shape, pin_memory=device.type == "cuda") for t in state.values()]
    for _ in range(3):
        with Timer(times["copy"], device):
            for there, here in zip(host, state.values(), strict=True):
                there.copy_(here, non_blocking=True)
    del host
    for number in range(config["saves"] + 1):
        os.sync()
        wait_for(device)
        began = time.perf_counter()
        train.report(
            {"number": number},
            checkpoint=Checkpoint.from_dict(state),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
        )
        returned = time.perf_counter()
        wait_for(device)
        free = time.perf_counter()
        train.get_all_reported_checkpoints()
        times["ours returned"].append(returned - began)
        times["ours"].append(free - began)
        times["committed"].append(time.perf_counter() - began)
    read = train.get_checkpoint().to_dict()
    assert all(torch.equal(read[name], value.cpu()) for name, value in state.items()), "the saved state differs"
    del read
    memory = mmap.mmap(-1, int(gigabytes * 1e9) & ~0xFFF)
    memory[:] = b"\1" * len(memory)
    times["disk"] = []
    for _ in range(1 + config["others"]):
        path = Path(config["directory"], "disk.bin")
        os.sync()
        with Timer(times["disk"], device):
            write_directly(memory, path)
        path.unlink()
    memory.close()
    for _ in range(config["others"]):
        place = Path(config["directory"], "other")
        place.mkdir()
        with Timer(times["torch.save"], device):
            torch.save(state, place / "state.pt")
        shutil.rmtree(place)
        place.mkdir()
        with Timer(times["DCP async"], device):
            written = dcp.async_save(state, checkpoint_id=str(place))
        written.result()
        shutil.rmtree(place)
    write_result(config["directory"], times)


def time_first_save(config):
    """Save a model and its optimizer for the first time, after training for a while or at once."""
    device, parts, steps = get_device(), 32, []
    size = int(config["gigabytes"] * 1e9) // 4 // 3 // parts
    weights = torch.nn.ParameterList(torch.randn(size, device=device) for _ in range(parts))
    optimizer = torch.optim.Adam(weights.parameters(), lr=1e-3)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    if not config["trained_s"]:
        optimizer = torch.optim.SGD(weights.parameters(), lr=1e-3)
        state = {"weights": [torch.randn(size, device=device) for _ in range(3 * parts)]}
    began = time.perf_counter()
    while time.perf_counter() - began < config["trained_s"]:
        begun = time.perf_counter()
        for _ in range(5):
            optimizer.step()
        wait_for(device)
        steps.append((time.perf_counter() - begun) / 5)
    if config["trained_s"]:
        state = {"model": weights.state_dict(), "optimizer": optimizer.state_dict()}
    wait_for(device)
    began = time.perf_counter()
    train.report({}, checkpoint=Checkpoint.from_dict(state), checkpoint_upload_mode=CheckpointUploadMode.ASYNC)
    wait_for(device)
    blocked = time.perf_counter() - began
    train.get_all_reported_checkpoints()
    write_result(config["directory"], {"blocked": blocked, "steps": steps})


class Timer:
    def __init__(self, samples, device):
        self.samples, self.device = samples, device

    def __enter__(self):
        wait_for(self.device)
        self.began = time.perf_counter()

    def __exit__(self, *problem):
        wait_for(self.device)
        self.samples.append(time.perf_counter() - self.began)


def recover(config):
    device, lost = get_device(), Path(config["directory"], "lost")
    weights = torch.ones(1000, device=device)
    restored = train.get_checkpoint()
    if restored is None:
        weights = weights @ torch.ones(1000, 1000, device=device)
        train.report({}, checkpoint=Checkpoint.from_dict({"weights": weights}))
        lost.write_text(repr(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    weights = restored.to_dict()["weights"].to(device)
    assert weights.sum().item() == 1e6
    write_result(config["directory"], {"seconds": time.time() - float(lost.read_text())})


def main():
    directory, question, config = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    datasets = {}
    if question == "pictures":
        rows = paceline.data.read_parquet(config["files"], columns=["jpeg", "label"])
        datasets["train"] = rows.map_batches(decode_batch, batch_format="numpy")
    has_gpu = torch.cuda.is_available()
    TorchTrainer(
        {
            "tokens": train_gpt,
            "pictures": train_on_images,
            "checkpoint": time_checkpoints,
            "first save": time_first_save,
            "recovery": recover,
        }[question],
        train_loop_config={**config, "directory": directory},
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if has_gpu else "gloo"),
        scaling_config=ScalingConfig(num_workers=1, use_gpu=has_gpu),
        run_config=RunConfig(
            name="run",
            storage_path=directory,
            checkpoint_config=train.CheckpointConfig(num_to_keep=1),
            failure_config=train.FailureConfig(max_failures=1 if question == "recovery" else 0),
        ),
        datasets=datasets,
    ).fit()


main()
