"""A training that saves and restores everything, or all but one thing; `kept` leaves that in the checkpoint."""

import time

import torch
from torch import nn

from paceline import train
from paceline.train import Checkpoint, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer, prepare_model


def train_func(config):
    left_out = config["left_out"]
    context = train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    if left_out != "seed":
        torch.manual_seed(7 + rank)
    data = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    target = data.sum(1, keepdim=True)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))
    model = prepare_model(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    step = position = 0

    if checkpoint := train.get_checkpoint():
        state = checkpoint.to_dict()
        step = state["step"]
        if left_out != "model":
            net.load_state_dict(state["model"])
        if left_out != "optimizer":
            optimizer.load_state_dict(state["optimizer"])
        if left_out != "scheduler":
            scheduler.load_state_dict(state["scheduler"])
        if left_out != "data order":
            position = state["position"]
        if left_out not in ("rng", "seed"):
            torch.set_rng_state(state["rng"][rank])

    while step < config["until"]:
        order = torch.randperm(64, generator=torch.Generator().manual_seed(position // 8))
        batch = order[position % 8 * 8 :][:8]
        loss = nn.functional.mse_loss(model(data[batch]), target[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        step, position = step + 1, position + 1
        checkpoint = None
        if step % 4 == 0:
            state = {
                "step": step,
                "model": net.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "position": position,
                "rng": gathered(torch.get_rng_state(), size),
            }
            if not config["kept"]:
                state.pop({"data order": "position", "seed": "rng"}.get(left_out, left_out), None)
            checkpoint = Checkpoint.from_dict(state) if rank == 0 else None
        train.report({"loss": loss.item(), "perf": {"step_time_s": time.time()}}, checkpoint=checkpoint)


def gathered(value, size):
    values = [None] * size
    torch.distributed.all_gather_object(values, value)
    return values


def trainer_for(left_out, num_workers, storage, *, kept=False, until=12, **run_config):
    return TorchTrainer(
        train_func,
        train_loop_config={"left_out": left_out, "kept": kept, "until": until},
        scaling_config=ScalingConfig(num_workers),
        run_config=RunConfig(name="mlp", storage_path=storage, **run_config),
    )
