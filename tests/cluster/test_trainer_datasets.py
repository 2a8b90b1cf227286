"""Datasets of a trainer on a cluster: each worker has the same rows in the same order as on one machine."""

import json
import os
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import paceline.data
from paceline import train
from paceline.train import Checkpoint, DataConfig, TrainingFailedError

NUM_ROWS = 60


@pytest.fixture
def files(tmp_path):
    """Five Parquet files of two row groups each, with the numbers from 0 on."""
    (tmp_path / "files").mkdir()
    for number, part in enumerate(np.array_split(np.arange(NUM_ROWS), 5)):
        pq.write_table(pa.table({"id": part}), tmp_path / "files" / f"part-{number}.parquet", row_group_size=6)
    return str(tmp_path / "files")


def take_notes(config):
    """Writes down every row that it is given, and saves after every batch; dies where it is told to."""
    rank, size = train.get_context().get_world_rank(), train.get_context().get_world_size()
    checkpoint = train.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    first = step // config["per_epoch"] if "per_epoch" in config else 0
    path = Path(config["path"]) / f"{os.getpid()}.jsonl"
    shards = {name: train.get_dataset_shard(name) for name in config.get("names", ["train"])}
    for epoch in range(first, config.get("epochs", 1)):
        for name, shard in shards.items():
            for batch in shard.iter_batches(batch_size=4, **config.get("options", {})):
                step += 1
                note = {"name": name, "epoch": epoch, "step": step, "rank": rank, "size": size}
                with path.open("a") as lines:
                    lines.write(json.dumps(note | {"ids": batch["id"].tolist()}) + "\n")
                train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
                if [step, rank] == config.get("dies") and checkpoint is None:
                    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def fit_and_read(tmp_path, fit):
    """Fits, and returns the last step and the notes of all ranks in order. `how` is for the function."""

    def run(datasets, dataset_config, num_workers=2, *, max_failures=0, name="run", engine=None, **how):
        notes = tmp_path / "notes" / name
        notes.mkdir(parents=True, exist_ok=True)
        run = {"config": {"path": str(notes), **how}, "max_failures": max_failures, "name": name, "engine": engine}
        result = fit(take_notes, num_workers, more={"datasets": datasets, "dataset_config": dataset_config}, **run)
        lines = [json.loads(line) for file in notes.glob("*.jsonl") for line in file.read_text().splitlines()]
        return result.metrics["step"], sorted(lines, key=lambda line: (line["step"], line["rank"]))

    return run


def ids(lines):
    return Counter(number for line in lines for number in line["ids"])


def by_step(lines):
    return {(line["step"], line["rank"]): (line["name"], line["epoch"], line["ids"]) for line in lines}


def test_a_killed_run_gives_each_rank_the_rows_that_it_has_on_one_machine(files, fit_and_read):
    """Two datasets, one of them whole on every rank, rows that change places, and a death in the second epoch."""
    some = paceline.data.read_parquet(files, shuffle="files").filter(expr="id != 13")
    datasets = {"train": some, "whole": paceline.data.range(9)}
    options = {"local_shuffle_buffer_size": 10, "local_shuffle_seed": 7}
    how = {"names": ["train", "whole"], "epochs": 2, "per_epoch": 11, "options": options}
    config = DataConfig(datasets_to_split=["train"])
    _, on_one_machine = fit_and_read(datasets, config, name="local", engine="local", **how)
    last_step, lines = fit_and_read(datasets, config, name="killed", dies=[15, 1], max_failures=1, **how)

    assert by_step(lines) == by_step(on_one_machine)
    assert last_step == 22
    in_train = [line for line in on_one_machine if line["name"] == "train" and line["epoch"] == 0]
    assert len(ids(in_train)) == NUM_ROWS - 2  # one is filtered out, and one is too many for two


@pytest.mark.slow
def test_resumes_with_another_number_of_workers_and_each_row_once(files, fit_and_read):
    def beyond(batch):
        return {"id": batch["id"] + 100}

    datasets = {"train": paceline.data.read_parquet(files).map_batches(beyond)}
    config = DataConfig(exact=["train"])
    with pytest.raises(TrainingFailedError):
        fit_and_read(datasets, config, dies=[3, 0])
    _, lines = fit_and_read(datasets, config, num_workers=3)

    # What was done beyond the last checkpoint is done again.
    done = [line for line in lines if line["size"] == 3 or line["step"] <= 3]
    assert ids(done) == Counter(range(100, 100 + NUM_ROWS))
    assert {line["rank"] for line in done if line["size"] == 3} == {0, 1, 2}
