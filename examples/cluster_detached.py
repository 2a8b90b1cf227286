"""A detached run on a Ray cluster: it goes on when the script that began it is gone, and is found again.

    python examples/cluster_detached.py                                 on a cluster that is started here, for this
    python examples/cluster_detached.py --address 10.0.0.1:6379 --storage-path /shared/runs --name shapes
    paceline attach /shared/runs/shapes                                 from any machine that sees both

It begins the run in another process and kills that, as a laptop that is closed would. The run is driven by an actor on
the cluster and does not notice. Then this script attaches to it, prints what it says until it ends, and its result.
Below the stated accuracy it exits with 1. It needs `pip install "paceline[torch,ray]"`.

Workers on several machines need storage that all of them see; see docs/guides/cluster.md.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import paceline
from paceline.train import CheckpointConfig, FailureConfig, Result, RunConfig, ScalingConfig

STATED_ACCURACY = 0.8


def begin(args: argparse.Namespace) -> None:
    """The script that one would write: all that is special is `detached=True`."""
    # Here, because what only attaches has no use for torch.
    from train_ddp import train_func  # modules beside the script travel to the nodes with it

    from paceline.train.torch import TorchTrainer

    paceline.init(engine="ray", address=args.address)
    TorchTrainer(
        train_func,
        train_loop_config={"epochs": args.epochs, "batch_size": 32, "lr": 3e-3, "samples": args.samples, "seed": 0},
        scaling_config=ScalingConfig(num_workers=args.num_workers, use_gpu=args.use_gpu),
        run_config=RunConfig(
            name=args.name,
            storage_path=args.storage_path,
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy"),
            detached=True,
        ),
    ).fit()  # follows the run, and would return its result


def begun_and_left(address: str, storage_path: str, name: str) -> None:
    """Have another process begin the run, and kill it once the first epoch is told of."""
    # What is given twice counts as it is given last.
    options = [*sys.argv[1:], f"--address={address}", f"--storage-path={storage_path}", f"--name={name}", "--begin"]
    with subprocess.Popen(
        [sys.executable, __file__, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as script:
        assert script.stdout is not None
        for line in script.stdout:
            print(f"    {line}", end="", flush=True)
            if "epoch 0: " in line:
                script.kill()
                print("the script that began the run is killed")
                return
    if script.returncode != 0:
        sys.exit(f"the script that was to begin the run ended with {script.returncode}")
    print("the run was complete before")


@contextlib.contextmanager
def cluster_at(address: str | None, num_workers: int) -> Iterator[str]:
    """The cluster to use: that of the address, or one in processes of this machine, which ends with this script."""
    if address is not None:
        yield address
        return
    import ray

    # As many CPUs as the workers want, also where there are fewer cores.
    context = ray.init(num_cpus=num_workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield context.address_info["gcs_address"]
    finally:
        ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", help="of a Ray cluster; without it one is started on this machine")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--use-gpu", action="store_true", help="give each worker a GPU")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4000, help="images to train on")
    parser.add_argument("--min-accuracy", type=float, default=STATED_ACCURACY, help="or it exits with 1")
    parser.add_argument("--storage-path", default="results", help="where runs are kept: a directory of all nodes")
    parser.add_argument("--name", default=f"detached-{time.strftime('%H%M%S')}-{os.getpid()}", help="of the run")
    parser.add_argument("--begin", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.storage_path = str(Path(args.storage_path).absolute())
    if args.begin:
        begin(args)
        return

    run = Path(args.storage_path, args.name)
    with cluster_at(args.address, args.num_workers) as address:
        print(f"a script begins run {args.name} on the cluster at {address}")
        begun_and_left(address, args.storage_path, args.name)
        print(f"paceline attach {run}")
        attach = [sys.executable, "-m", "paceline", "attach", str(run), "--address", address]
        code = subprocess.run(attach, check=False).returncode
    if code != 0:
        sys.exit(code)

    result = Result.from_path(run)  # everything about a run is in its directory
    best = result.get_best_checkpoint("accuracy", "max")
    accuracy = max(metrics["accuracy"] for _, metrics in result.best_checkpoints)
    print(f"epochs           {result.metrics_dataframe['epoch'].tolist()}, each once")
    print(f"best checkpoint  {best.path}")
    print(f"accuracy         {accuracy:.1%}; {args.min_accuracy:.0%} is to be reached")
    if accuracy < args.min_accuracy:
        sys.exit("that is below what this example states")


if __name__ == "__main__":
    main()
