"""An elastic run: a worker is killed and its place is lost, training goes on with fewer, and grows when there is room.

    python examples/elastic.py                      twice: undisturbed, then with a kill
    python examples/elastic.py --num-workers 4      as many as four, on a machine with four cores

With a global batch size the training does not notice: whatever the number of workers, each step is made of the same
pictures. The proof is the loss of every step, which has to be that of the undisturbed run to a billionth; and accuracy
has to be what is stated. Otherwise it exits with 1.

It needs two cores, since on one there is no room for a second worker, and `pip install "paceline[torch,pandas]"`.
"""

import argparse
import os
import sys
import time

# Before torch: from here on the process that workers fork from imports it as well, at the same time as this one.
from paceline import train
from paceline.testing import Faults
from paceline.train import Checkpoint, CheckpointConfig, Result, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer, prepare_data_loader, prepare_model

# isort: split
import torch
import torch.distributed as dist
from shapes import shapes
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from train_ddp import Network

STATED_ACCURACY = 0.6
STATED_DIFFERENCE = 1e-9


def train_func(config: dict) -> float:
    """Runs on every worker, however many there are this time. Returns the accuracy in the end."""
    torch.manual_seed(0)
    # Sums over other numbers of workers are rounded differently. In float64 that is far below what is compared.
    torch.set_default_dtype(torch.float64)
    context = train.get_context()
    size, rank = context.get_world_size(), context.get_world_rank()

    loader = prepare_data_loader(DataLoader(shapes(config["samples"], seed=1), shuffle=True))  # its share of the batch
    network = Network()
    model = prepare_model(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    step = 0
    if (checkpoint := train.get_checkpoint()) is not None:
        state = checkpoint.to_dict()
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])  # the place in the epoch, in global batches
        step = state["step"]

    while step < config["steps"]:
        for pictures, labels in loader:
            loss = cross_entropy(model(pictures.double()), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            metrics = {"step": step, "loss": mean.item() / size, "workers": size}
            # A checkpoint is where a run comes back after a loss, and where it may grow.
            checkpoint = None
            if rank == 0 and (step % config["checkpoint_every"] == 0 or step == config["steps"]):
                state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
                checkpoint = Checkpoint.from_dict({**state, "loader": loader.state_dict(), "step": step})
            train.report(metrics, checkpoint=checkpoint)
            if step == config["steps"]:
                break

    pictures, labels = shapes(500, seed=2).tensors
    with torch.no_grad():
        return (network(pictures.double()).argmax(1) == labels).double().mean().item()


def trainer(args: argparse.Namespace, name: str) -> TorchTrainer:
    return TorchTrainer(
        train_func,
        train_loop_config={"steps": args.steps, "samples": args.samples, "checkpoint_every": args.checkpoint_every},
        scaling_config=ScalingConfig(
            num_workers=(1, args.num_workers),
            global_batch_size=args.global_batch_size,
            elastic_resize_monitor_interval_s=0,  # look at every commit; by default once a minute
        ),
        run_config=RunConfig(
            name=f"{args.name}-{name}",
            storage_path=args.storage_path,
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", type=int, default=2, help="at most; at least it is one")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--global-batch-size", type=int, default=32, help="of all workers together")
    parser.add_argument("--checkpoint-every", type=int, default=5, help="steps")
    parser.add_argument("--samples", type=int, default=1500, help="pictures to train on")
    parser.add_argument("--min-accuracy", type=float, default=STATED_ACCURACY, help="or it exits with 1")
    parser.add_argument("--storage-path", help="where runs are kept; by default ~/paceline_results")
    parser.add_argument("--name", default=f"elastic-{time.strftime('%H%M%S')}-{os.getpid()}", help="of the two runs")
    args = parser.parse_args()
    if args.num_workers < 2:
        parser.error("--num-workers is at least 2: one is lost on the way")

    undisturbed = trainer(args, "undisturbed").fit()

    # What a node that goes, and comes back, does to a run. With os.kill(pid, signal.SIGKILL) from anywhere it is the
    # same, but this strikes in the very step that is named. Room is lost beside it, since a kill takes no core away.
    lost, found = args.steps // 3, args.steps // 2
    faults = (
        Faults()
        .kill(1, at=("step", lost))
        .lose_capacity(args.num_workers - 1, at=("step", lost))
        .regain_capacity(args.num_workers, at=("step", found))
    )
    disturbed = faults.applied_to(trainer(args, "disturbed")).fit()

    print()
    print_sizes(disturbed)
    problems = [f"this did not happen: {fault}" for fault in faults.unfired(disturbed.path)]
    curve, expected = (result.metrics_dataframe for result in (disturbed, undisturbed))
    if curve["step"].tolist() != expected["step"].tolist():
        problems.append("steps were left out, or made twice")
    elif not curve["workers"].iloc[0] == curve["workers"].iloc[-1] > curve["workers"].min():
        problems.append("the number of workers did not fall and rise again")
    else:
        difference = (curve["loss"] - expected["loss"]).abs().max()
        print(f"loss        of all {args.steps} steps as in the undisturbed run, to {difference:.1e}")
        if difference > STATED_DIFFERENCE:
            problems.append(f"that is more than the {STATED_DIFFERENCE} that this example states")
    accuracy = disturbed.return_value
    print(f"accuracy    {accuracy:.1%}; {args.min_accuracy:.0%} is to be reached")
    if accuracy < args.min_accuracy:
        problems.append("the accuracy is below what this example states")
    if problems:
        sys.exit("\n".join(problems))


def print_sizes(result: Result) -> None:
    """From which step on there were how many workers."""
    frame = result.metrics_dataframe
    changed = frame[frame["workers"].diff() != 0]
    for step, workers in zip(changed["step"], changed["workers"], strict=True):
        print(f"from step {step:3d}  {workers} worker{'s' if workers > 1 else ''}")


if __name__ == "__main__":
    main()
