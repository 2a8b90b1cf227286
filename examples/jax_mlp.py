"""A small network in JAX learns which of three spiral arms a point lies on; its batches are spread over the workers.

    python examples/jax_mlp.py --num-workers 2
    python examples/jax_mlp.py --name spirals     run it again after a crash: it continues

pip install "paceline[jax]" optax. Below the stated accuracy, on points it has not seen, it exits with 1.
"""

import argparse
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import paceline.data
from paceline import train
from paceline.train import CheckpointConfig, CheckpointUploadMode, FailureConfig, RunConfig, ScalingConfig
from paceline.train.jax import JaxTrainer, OrbaxCheckpoint

STATED_ACCURACY = 0.95
NUM_ARMS = 3


def spirals(num_points: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points in the plane, and the number of the arm that each lies on. Your own data goes here."""
    random = np.random.default_rng(seed)
    arm = random.integers(NUM_ARMS, size=num_points)
    along = np.sqrt(random.uniform(0.02, 1, num_points))
    angle = 2 * np.pi * (arm / NUM_ARMS + 0.9 * along) + random.normal(0, 0.12, num_points)
    points = along[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return points.astype(np.float32), arm.astype(np.int32)


def new_params(key: jax.Array, sizes: list[int]) -> list[dict[str, jax.Array]]:
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"w": jax.random.normal(key, (inputs, outputs)) * jnp.sqrt(2 / inputs), "b": jnp.zeros(outputs)}
        for key, inputs, outputs in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def network(params: list[dict[str, Any]], points: Any) -> jax.Array:
    for layer in params[:-1]:
        points = jax.nn.relu(points @ layer["w"] + layer["b"])
    return points @ params[-1]["w"] + params[-1]["b"]


def accuracy_of(params: list[dict[str, Any]], points: Any, arms: Any) -> jax.Array:
    return jnp.mean(network(params, points).argmax(1) == arms)


def train_func(config: dict) -> None:
    """Runs on every worker. `jax.devices()` has those of all of them."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    spread = NamedSharding(mesh, PartitionSpec("data"))  # the rows of a batch: each worker has its own
    everywhere = NamedSharding(mesh, PartitionSpec())  # the weights: each worker has all
    optimizer = optax.adam(config["lr"])

    def begin() -> dict[str, Any]:
        params = new_params(jax.random.key(config["seed"]), [2, *config["hidden"], NUM_ARMS])
        return {"params": params, "optimizer": optimizer.init(params)}

    @jax.jit
    def step(state: dict, batch: dict) -> tuple[dict, jax.Array]:
        def loss_of(params: list) -> jax.Array:
            logits = network(params, batch["point"])
            # The mean is over the rows of all workers, so its gradient is too: JAX does what that takes.
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["arm"]).mean()

        loss, gradient = jax.value_and_grad(loss_of)(state["params"])
        updates, kept = optimizer.update(gradient, state["optimizer"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": kept}, loss

    state, first_epoch = jax.jit(begin, out_shardings=everywhere)(), 1
    if checkpoint := train.get_checkpoint():
        saved = OrbaxCheckpoint.from_checkpoint(checkpoint).get_pytree(like={"state": state, "epoch": 0})
        state, first_epoch = saved["state"], saved["epoch"] + 1

    points, arms = spirals(1000, seed=2)  # the same on every worker, so that all find the same accuracy
    validated = jax.jit(accuracy_of)
    shard = train.get_dataset_shard("train")
    for epoch in range(first_epoch, config["epochs"] + 1):
        # `drop_last`: parts of different sizes would make no array together.
        for batch in shard.iter_jax_batches(batch_size=config["batch_size"], sharding=spread, drop_last=True):
            state, loss = step(state, batch)
        accuracy = validated(state["params"], points, arms)
        if train.get_context().get_world_rank() == 0:
            print(f"epoch {epoch}: loss {loss:.3f}, accuracy {accuracy:.1%}")
        # Copied before this returns, and written while the next epoch is computed.
        saved = OrbaxCheckpoint.from_pytree({"state": state, "epoch": epoch})
        metrics = {"epoch": epoch, "loss": loss, "accuracy": accuracy}
        train.report(metrics, checkpoint=saved, checkpoint_upload_mode=CheckpointUploadMode.ASYNC)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--use-gpu", action="store_true", help="give each worker a GPU")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64, help="of each worker")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64], help="the width of each hidden layer")
    parser.add_argument("--samples", type=int, default=6000, help="points to train on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--storage-path", help="where runs are kept; by default ~/paceline_results")
    parser.add_argument("--name", help="of the run; one that exists is continued")
    args = parser.parse_args()

    points, arms = spirals(args.samples, seed=1)
    rows = paceline.data.from_items([{"point": point, "arm": arm} for point, arm in zip(points, arms, strict=True)])
    result = JaxTrainer(
        train_func,
        train_loop_config={
            "epochs": args.epochs,
            "batch_size": args.batch_size,
            "lr": args.lr,
            "hidden": args.hidden,
            "seed": args.seed,
        },
        datasets={"train": rows.random_shuffle(seed=args.seed)},
        scaling_config=ScalingConfig(num_workers=args.num_workers, use_gpu=args.use_gpu),
        run_config=RunConfig(
            name=args.name,
            storage_path=args.storage_path,
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()

    # Without `like` the arrays are NumPy's: a checkpoint can be used where there are no workers.
    saved = OrbaxCheckpoint.from_checkpoint(result.checkpoint).get_pytree()
    accuracy = float(accuracy_of(saved["state"]["params"], *spirals(2000, seed=3)))
    print(f"accuracy    {accuracy:.1%} on 2000 points it has not seen; stated are {STATED_ACCURACY:.0%}")
    print(f"checkpoint  {result.checkpoint.path}, of epoch {saved['epoch']}")
    if accuracy < STATED_ACCURACY:
        sys.exit("that is below what this example states")


if __name__ == "__main__":
    main()
