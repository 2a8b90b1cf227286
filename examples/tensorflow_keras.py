"""A Keras model learns to tell the shapes of waves apart under noise, on workers that are one TensorFlow cluster.

    python examples/tensorflow_keras.py --num-workers 2
    python examples/tensorflow_keras.py --name waves     run it again after a crash: it continues

pip install "paceline[tensorflow]". The step is written out, because fit() of Keras 3 does not work under
MultiWorkerMirroredStrategy. Below the stated accuracy, on waves it has not seen, this exits with 1.
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np

import paceline.data
from paceline import train
from paceline.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from paceline.train.tensorflow import TensorflowCheckpoint, TensorflowTrainer

# TensorFlow is imported where it is used: what this process imports does not help its workers, which are fresh ones.

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # less of its greeting in this process

STATED_ACCURACY = 0.9
SHAPES = ("sine", "square", "triangle", "sawtooth", "pulse")
LENGTH = 64


def waves(num_waves: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Waves of any frequency, phase and height, with the number of their shape. Your own data goes here."""
    random = np.random.default_rng(seed)

    def each(low: float, high: float) -> np.ndarray:
        """One number for each wave."""
        return random.uniform(low, high, (num_waves, 1))

    shape = random.integers(len(SHAPES), size=num_waves)
    place = (each(0, 1) + each(1.5, 4) * np.linspace(0, 1, LENGTH)) % 1
    drawn = (
        np.sin(2 * np.pi * place),
        np.where(place < 0.5, 1.0, -1.0),
        1 - 4 * abs(place - 0.5),
        2 * place - 1,
        np.where(place < 0.15, 1.0, -0.2),
    )
    wave = np.choose(shape[:, None], drawn) * each(0.6, 1.4) + random.normal(0, 0.15, (num_waves, LENGTH))
    return wave.astype(np.float32)[..., None], shape.astype(np.int64)


def train_func(config: dict) -> None:
    """Runs on every worker."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before all other work with TensorFlow
    keras = tf.keras
    rank = train.get_context().get_world_rank()
    checkpoint, first_epoch = train.get_checkpoint(), 1
    with strategy.scope():
        if checkpoint is not None:
            model = TensorflowCheckpoint(checkpoint.path).get_model()  # weights, optimizer and its settings
            with checkpoint.as_directory() as directory:
                first_epoch = int(Path(directory, "epoch").read_text()) + 1
        else:
            keras.utils.set_random_seed(config["seed"])
            model = keras.Sequential(
                [
                    keras.Input((LENGTH, 1)),
                    keras.layers.Conv1D(16, 7, strides=2, activation="relu"),
                    keras.layers.Conv1D(32, 5, strides=2, activation="relu"),
                    keras.layers.GlobalMaxPooling1D(),
                    keras.layers.Dense(len(SHAPES)),
                ]
            )
            model.compile(keras.optimizers.Adam(config["lr"]))
        loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    # This worker's own rows, in batches of its own; a strategy divides nothing here.
    shard = train.get_dataset_shard("train")
    batches = strategy.distribute_datasets_from_function(
        lambda _: shard.to_tf("wave", "shape", batch_size=config["batch_size"])
    )

    def step(wave: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(loss_fn(shape, model(wave, training=True)))
            # Gradients of all workers are added up: each counts for its part.
            scaled = loss / strategy.num_replicas_in_sync
        gradients = tape.gradient(scaled, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step_on_all(wave: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(step, args=(wave, shape)), axis=None)

    for epoch in range(first_epoch, config["epochs"] + 1):
        for wave, shape in batches:
            loss = step_on_all(wave, shape)
        saved = None
        if rank == 0:
            print(f"epoch {epoch}: loss {float(loss):.3f}")
            saved = TensorflowCheckpoint.from_model(model)
            Path(saved.path, "epoch").write_text(str(epoch))
        train.report({"epoch": epoch, "loss": float(loss)}, checkpoint=saved)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--use-gpu", action="store_true", help="give each worker a GPU")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--samples", type=int, default=4000, help="waves to train on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--storage-path", help="where runs are kept; by default ~/paceline_results")
    parser.add_argument("--name", help="of the run; one that exists is continued")
    args = parser.parse_args()

    rows = [{"wave": wave, "shape": shape} for wave, shape in zip(*waves(args.samples, seed=1), strict=True)]
    result = TensorflowTrainer(
        train_func,
        train_loop_config={
            "epochs": args.epochs,
            "batch_size": args.batch_size,
            "lr": args.lr,
            "seed": args.seed,
        },
        datasets={"train": paceline.data.from_items(rows).random_shuffle(seed=args.seed)},
        scaling_config=ScalingConfig(num_workers=args.num_workers, use_gpu=args.use_gpu),
        run_config=RunConfig(
            name=args.name,
            storage_path=args.storage_path,
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()

    # In this process there is no strategy, and all of Keras works.
    model = TensorflowCheckpoint(result.checkpoint.path).get_model()
    wave, shape = waves(1000, seed=2)
    accuracy = (model.predict(wave, batch_size=500, verbose=0).argmax(1) == shape).mean()
    print(f"accuracy    {accuracy:.1%} on {len(shape)} waves it has not seen; stated are {STATED_ACCURACY:.0%}")
    print(f"checkpoint  {result.checkpoint.path}")
    if accuracy < STATED_ACCURACY:
        sys.exit("that is below what this example states")


if __name__ == "__main__":
    main()
