"""Datasets of a trainer: each worker gets its part, every row once, also across deaths and other numbers of workers."""

import functools
import json
import os
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fits import fit_in

import paceline.data
from paceline import train
from paceline.train import Checkpoint, DataConfig, DataParallelTrainer, TrainingFailedError

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
    shard = train.get_dataset_shard("train")
    checkpoint = train.get_checkpoint()
    step = checkpoint.to_dict()["step"] if checkpoint else 0
    first = step // config["per_epoch"] if "per_epoch" in config else 0
    path = Path(config["path"]) / f"{os.getpid()}.jsonl"
    for epoch in range(first, config.get("epochs", 1)):
        for batch in shard.iter_batches(batch_size=config["batch"], **config.get("options", {})):
            step += 1
            note = {"epoch": epoch, "step": step, "rank": rank, "size": size, "ids": batch["id"].tolist()}
            with path.open("a") as lines:
                lines.write(json.dumps(note) + "\n")
            train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
            if [step, rank] == config.get("dies") and checkpoint is None:
                os.kill(os.getpid(), signal.SIGKILL)


def observed(path: Path) -> list[dict]:
    lines = [json.loads(line) for file in path.glob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted(lines, key=lambda line: (line["step"], line["rank"]))


def ids(lines: list[dict]) -> Counter[int]:
    return Counter(number for line in lines for number in line["ids"])


def fitted(tmp_path: Path, dataset, *, num_workers=2, dataset_config=None, max_failures=0, name="run", **config):
    notes = tmp_path / "notes" / name
    notes.mkdir(parents=True, exist_ok=True)
    config = {"path": str(notes), "batch": 4, **config}
    options = {"config": config, "datasets": {"train": dataset}, "dataset_config": dataset_config}
    return fit_in(tmp_path, noted, num_workers, name=name, max_failures=max_failures, **options), observed(notes)


@pytest.mark.parametrize(
    "options", [pytest.param({}, marks=pytest.mark.slow), {"local_shuffle_buffer_size": 10, "local_shuffle_seed": 7}]
)
def test_after_a_death_in_the_middle_of_an_epoch_the_rest_of_it_comes(files, tmp_path, options):
    dataset = paceline.data.read_parquet(str(files), shuffle="files").filter(expr="id != 13")
    _, whole = fitted(tmp_path, dataset, name="whole", epochs=2, options=options, per_epoch=8)
    result, lines = fitted(
        tmp_path, dataset, name="killed", epochs=2, options=options, per_epoch=8, dies=[11, 1], max_failures=1
    )

    # The step that a rank died after was saved before; what the other rank did beyond it is done again.
    kept = {(line["step"], line["rank"]): line["ids"] for line in lines}
    assert kept == {(line["step"], line["rank"]): line["ids"] for line in whole}
    assert result.metrics["step"] == max(step for step, _ in kept)


def test_a_run_goes_on_with_another_number_of_workers_where_the_data_stood(files, tmp_path):
    dataset = paceline.data.read_parquet(str(files))
    config = DataConfig(exact=["train"])
    with pytest.raises(TrainingFailedError):
        fitted(tmp_path, dataset, dataset_config=config, dies=[3, 0])
    _, lines = fitted(tmp_path, dataset, dataset_config=config, num_workers=3)

    # What was done beyond the last checkpoint is done again.
    kept = [line for line in lines if line["size"] == 3 or line["step"] <= 3]
    assert ids(kept) == Counter(range(NUM_ROWS))
    assert {line["rank"] for line in kept if line["size"] == 3} == {0, 1, 2}


def test_rows_that_are_too_many_are_other_ones_in_every_epoch(tmp_path):
    rows = [{"id": number} for number in range(5)]
    result, lines = fitted(tmp_path, rows, batch=1, epochs=5, per_epoch=2, dies=[3, 1], max_failures=1)

    said = "each epoch leaves out 1 of the 5 rows of dataset 'train'"
    logs = "\n".join(path.read_text() for path in Path(result.log_dir).rglob("rank_*.log"))
    assert logs.count(said) == logs.count("DataConfig(exact=['train']) leaves out none") == 1
    left_out = [set(range(5)) - set(ids([line for line in lines if line["epoch"] == epoch])) for epoch in range(5)]
    assert all(len(rows) == 1 for rows in left_out)
    assert set.union(*left_out) == set(range(5))


def test_what_a_trainer_takes_as_a_dataset():
    import pandas
    import torch
    from torch.utils.data import TensorDataset

    tables = [pandas.DataFrame({"id": [1, 2]}), pa.table({"id": [1, 2]}), TensorDataset(torch.arange(2))]
    rows = paceline.data.range(2)
    for dataset in ([1, 2], *tables, rows, lambda: rows, functools.partial(paceline.data.range, 2)):
        DataParallelTrainer(noted, train_loop_config={}, datasets={"train": dataset})
    for wrong in (7, lambda: 7):
        with pytest.raises(TypeError, match=r"datasets\['train'\]"):
            DataParallelTrainer(noted, train_loop_config={}, datasets={"train": wrong})
    with pytest.raises(ValueError, match="datasets must be a dict"):
        DataParallelTrainer(noted, train_loop_config={}, datasets=[1])


def test_a_dataset_that_the_trainer_does_not_have_is_named_with_those_it_has(fit):
    with pytest.raises(TrainingFailedError, match=r"unknown dataset 'valid'; .* datasets are 'train'") as failed:
        fit(lambda: train.get_dataset_shard("valid"), 1, datasets={"train": [1]})
    assert isinstance(failed.value.__cause__, KeyError)
    assert r"\n" not in str(failed.value), "a KeyError shows its text as a repr"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"datasets_to_split": "some"}, "datasets_to_split must be 'all' or a list of names, got 'some'"),
        ({"datasets_to_split": ["test"]}, "unknown dataset 'test' in datasets_to_split; the datasets are 'train'"),
        ({"exact": "train"}, "exact must be a list of names, got 'train'"),
        (
            {"execution_options": 5},
            "execution_options must be a paceline.data.ExecutionOptions, a dict of them or None, got 5",
        ),
        ({"execution_options": {"train": None}}, "a dict of them or None, got {'train': None}"),
    ],
)
def test_a_wrong_data_config_is_refused_by_name(config, message):
    with pytest.raises(ValueError, match=message.replace("'", ".")):
        DataParallelTrainer(noted, train_loop_config={}, datasets={"train": [1]}, dataset_config=config)


class OwnParts(DataConfig):
    """The last rows for rank 0, as iterators that know nothing of each other."""

    def configure(self, datasets, world_size, worker_handles=None, worker_node_ids=None, **kwargs):
        assert world_size == len(worker_node_ids) == 2
        first, last = datasets["train"].split(2)
        return [{"train": last.iterator()}, {"train": first.iterator()}]


class Halves(DataConfig):
    def configure(self, datasets, world_size, worker_handles, worker_node_ids, **kwargs):
        return super().configure({"train": datasets["train"].limit(32)}, world_size)


@pytest.mark.parametrize(("config", "num_rows"), [(OwnParts(), 60), (Halves(), 32)])
def test_workers_get_the_iterators_of_a_configure_of_ones_own_and_resume_them(files, tmp_path, config, num_rows):
    dataset = paceline.data.read_parquet(str(files))
    _, lines = fitted(tmp_path, dataset, dataset_config=config, dies=[3, 1], max_failures=1)
    kept = {(line["step"], line["rank"]): line["ids"] for line in lines}
    assert Counter(id for ids in kept.values() for id in ids) == Counter(range(num_rows))
    assert len(kept) == 2 * -(-num_rows // 8), "each rank continued where it was"
    assert kept[1, 0][0] == (30 if config == OwnParts() else 0)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([{}], r"the return value of Own\.configure\(\) must be a list of 2 dicts, one for each worker, got \[\{\}\]"),
        ([{}, {"train": [1]}], r"Iterator objects by name, got \{'train': \[1\]\}[\s\S]*hint: Dataset.streaming_split"),
    ],
)
def test_what_configure_returns_is_checked_and_where_it_cannot_be_called_it_is_refused(fit, parts, message):
    from paceline._core.engine_choice import EngineChoice
    from paceline.train.driver.cluster_target import ClusterTarget
    from paceline.train.driver.trainer_arguments import build_run_spec

    class Own(DataConfig):
        def configure(self, *args, **kwargs):
            return parts

    options = {"datasets": {"train": [1]}, "dataset_config": Own()}
    with pytest.raises(ValueError, match=message):
        fit(noted, 2, config={}, **options)
    arguments = DataParallelTrainer(noted, train_loop_config={}, **options).trainer_arguments
    target = ClusterTarget(arguments.scaling_config, arguments.run_config, EngineChoice())
    with pytest.raises(ValueError, match=r"Own\.configure\(\) needs workers on this machine"):
        build_run_spec(arguments, target)


def test_a_row_that_a_function_fails_on_ends_the_run_with_file_row_and_line(files, tmp_path):
    def fails(row):
        if row["id"] == 27:
            raise ValueError("no such thing as 27")
        return row

    dataset = paceline.data.read_parquet(str(files)).map(fails)
    with pytest.raises(TrainingFailedError) as caught:
        fitted(tmp_path, dataset)
    message = str(caught.value)
    assert "no such thing as 27" in message
    assert "part-2.parquet" in message
    assert "test_datasets.py" in message
