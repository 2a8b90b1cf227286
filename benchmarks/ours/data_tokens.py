"""Two workers take the rows of `examples/tokenize_text.py`. Arguments: directory, tokenizer, epochs, files."""

import sys
from pathlib import Path

from _data import write_result
from _tokens import BATCH_ROWS, LENGTH, time_tokens
from tokenize_text import rows_of

from paceline import train
from paceline.train import collective


def train_func(config):
    shard = train.get_dataset_shard("text")
    epochs = []
    for _ in range(config["epochs"]):
        collective.barrier()
        epochs.append(time_tokens(shard.iter_batches(batch_size=BATCH_ROWS, local_shuffle_buffer_size=1000)))
    write_result(config["directory"], train.get_context().get_world_rank(), epochs)


directory, tokenizer, epochs, *files = sys.argv[1:]
train.DataParallelTrainer(
    train_func,
    train_loop_config={"directory": directory, "epochs": int(epochs)},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="run", storage_path=directory),
    datasets={"text": rows_of(files, Path(tokenizer), LENGTH)},
    dataset_config=train.DataConfig(exact=["text"]),
).fit()
