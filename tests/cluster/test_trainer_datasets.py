"""Datasets of a trainer on a cluster: each worker has the same rows in the same order as on one machine."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paceline.data
from paceline import train
from paceline.train import Checkpoint, DataConfig

NUM_ROWS = 60
BATCHES_PER_EPOCH = 11
"""Of both datasets, for each of two ranks."""


@pytest.fixture
def files(tmp_path):
    """Five Parquet files of two row groups each, with the numbers from 0 on."""
    (tmp_path / "files").mkdir()
    for number, part in enumerate(np.array_split(np.arange(NUM_ROWS), 5)):
        pq.write_table(pa.table({"id": part}), tmp_path / "files" / f"part-{number}.parquet", row_group_size=6)
    return str(tmp_path / "files")


def take_notes(config):
    """Writes down every row that it is given, and saves after every batch; dies where it is told to."""
    rank, checkpoint = train.get_context().get_world_rank(), train.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    path = Path(config["path"]) / f"{os.getpid()}.jsonl"
    for epoch in range(step // BATCHES_PER_EPOCH, 2):
        for name in ("train", "whole"):
            options = {"local_shuffle_buffer_size": 10, "local_shuffle_seed": 7}
            for batch in train.get_dataset_shard(name).iter_batches(batch_size=4, **options):
                step += 1
                note = {"name": name, "epoch": epoch, "step": step, "rank": rank, "ids": batch["id"].tolist()}
                with path.open("a") as lines:
                    lines.write(json.dumps(note) + "\n")
                train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
                if [step, rank] == config.get("dies") and checkpoint is None:
                    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def fit_and_read(tmp_path, fit, files):
    """Fits on two datasets, one whole on every rank, and returns the last step and the notes of all ranks in order."""
    some = paceline.data.read_parquet(files, shuffle="files").filter(expr="id != 13")
    datasets = {"train": some, "whole": paceline.data.range(9)}
    more = {"datasets": datasets, "dataset_config": DataConfig(datasets_to_split=["train"])}

    def run(name, max_failures=0, engine=None, **how):
        notes = tmp_path / "notes" / name
        notes.mkdir(parents=True)
        run = {"config": {"path": str(notes), **how}, "max_failures": max_failures, "name": name, "engine": engine}
        result = fit(take_notes, 2, more=more, **run)
        lines = [json.loads(line) for file in notes.glob("*.jsonl") for line in file.read_text().splitlines()]
        return result.metrics["step"], sorted(lines, key=lambda line: (line["step"], line["rank"]))

    return run


def by_step(lines):
    return {(line["step"], line["rank"]): (line["name"], line["epoch"], line["ids"]) for line in lines}


def test_a_killed_run_gives_each_rank_the_rows_that_it_has_on_one_machine(fit_and_read):
    """Rows change places, and a rank dies in the second epoch."""
    _, on_one_machine = fit_and_read("local", engine="local")
    last_step, lines = fit_and_read("killed", dies=[15, 1], max_failures=1)

    assert by_step(lines) == by_step(on_one_machine)
    assert last_step == 2 * BATCHES_PER_EPOCH
    rows = {row for line in on_one_machine if line["name"] == "train" and line["epoch"] == 0 for row in line["ids"]}
    assert len(rows) == NUM_ROWS - 2  # one is filtered out, and one is too many for two
