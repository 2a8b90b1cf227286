"""Datasets of a trainer on a cluster: the rows of each worker are those it has on one machine, in the same order."""

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
from paceline.train import (
    Checkpoint,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
)

NUM_ROWS = 60


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Five Parquet files of two row groups each, with the numbers from 0 on."""
    directory = tmp_path / "files"
    directory.mkdir()
    for number, part in enumerate(np.array_split(np.arange(NUM_ROWS), 5)):
        pq.write_table(pa.table({"id": part}), directory / f"part-{number}.parquet", row_group_size=6)
    return directory


def noted(config):
    """Writes down every row that it is given, and saves after every batch; dies where it is told to."""
    rank, size = train.get_context().get_world_rank(), train.get_context().get_world_size()
    checkpoint = train.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    first = step // config["per_epoch"] if "per_epoch" in config else 0
    path = Path(config["path"]) / f"{os.getpid()}.jsonl"
    shards = {name: train.get_dataset_shard(name) for name in config.get("names", ["train"])}
    for epoch in range(first, config.get("epochs", 1)):
        for name, shard in shards.items():
            for batch in shard.iter_batches(batch_size=config["batch"], **config.get("options", {})):
                step += 1
                note = {"name": name, "epoch": epoch, "step": step, "rank": rank, "size": size}
                with path.open("a") as lines:
                    lines.write(json.dumps(note | {"ids": batch["id"].tolist()}) + "\n")
                if config.get("reports", True):
                    train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
                if [step, rank] == config.get("dies") and checkpoint is None:
                    os.kill(os.getpid(), signal.SIGKILL)


def seen(path: Path) -> list[dict]:
    lines = [json.loads(line) for file in path.glob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted(lines, key=lambda line: (line["step"], line["rank"]))


def ids(lines: list[dict]) -> Counter[int]:
    return Counter(number for line in lines for number in line["ids"])


def fitted(
    tmp_path: Path, datasets, *, num_workers=2, dataset_config=None, max_failures=0, name="run", engine=None, **config
):
    notes = tmp_path / "notes" / name
    notes.mkdir(parents=True, exist_ok=True)
    trainer = DataParallelTrainer(
        noted,
        train_loop_config={"path": str(notes), "batch": 4, **config},
        datasets=datasets if isinstance(datasets, dict) else {"train": datasets},
        dataset_config=dataset_config,
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(
            storage_path=str(tmp_path),
            name=name,
            failure_config=FailureConfig(max_failures=max_failures),
            engine=engine,
        ),
    )
    return trainer.fit(), seen(notes)


def test_workers_divide_the_rows_and_each_row_comes_once(files, tmp_path):
    dataset = paceline.data.read_parquet(str(files)).map_batches(lambda batch: {"id": batch["id"] + 100})
    _, lines = fitted(tmp_path, dataset)

    assert ids(lines) == Counter(range(100, 100 + NUM_ROWS))
    by_rank = Counter(line["rank"] for line in lines for _ in line["ids"])
    assert by_rank == {0: NUM_ROWS // 2, 1: NUM_ROWS // 2}
