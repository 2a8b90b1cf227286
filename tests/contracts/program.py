"""A training script as people write it, in functions: every engine has to bring it to the same end.

Two workers, or more, train a small model with DDP, on batches of a data loader and of a dataset. A report has the
numbers of the samples it was made of, so the order of samples is among the metrics. Rank 1 fails in the middle, once.
`account` is all that has to be alike: what it leaves out are times, processes, hosts and where the run lies.
"""

import hashlib
import json
import tempfile
from pathlib import Path

import paceline.data
from paceline import train
from paceline.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig, UserCallback, ValidationConfig

SAMPLES_EACH, ROWS_EACH = 12, 20
"""Of each worker in an epoch."""
EPOCHS, STEPS = 2, 8
AS_DICT, AS_FILES = (2, 5, 8), (4, 7)
FAILS_AFTER = 6


def function(config):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from paceline.train.torch import prepare_data_loader, prepare_model

    generator = torch.Generator().manual_seed(7)
    numbers = torch.arange(SAMPLES_EACH * train.get_context().get_world_size())
    samples = torch.randn(len(numbers), 4, dtype=torch.float64, generator=generator)
    loader = prepare_data_loader(DataLoader(TensorDataset(numbers, samples), batch_size=3, shuffle=True))
    model = torch.nn.Linear(4, 1, dtype=torch.float64)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, 0.5)
    model = prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    last = train.get_checkpoint()
    step, first = 0, 0
    if last is not None:
        state = last.to_dict()
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step, first = state["step"], state["epoch"]
    for epoch in range(first, EPOCHS):
        epoch_of_rows = train.get_dataset_shard("rows").iter_torch_batches(batch_size=5)
        for rows, (samples, batch) in zip(epoch_of_rows, loader, strict=True):
            loss = ((model(batch).squeeze(1) - batch.sum(dim=1) - rows["value"].mean()) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            state = {"step": step, "epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state["loader"] = loader.state_dict()
            metrics = {"step": step, "loss": loss, "samples": samples.tolist(), "rows": rows["id"].tolist()}
            report(metrics, state)
            if step == FAILS_AFTER and last is None and config["fails"]:
                fail()
    return {"rank": rank(), "weights": model.module.weight.flatten().tolist(), "resumed": last is not None}


def rank():
    return train.get_context().get_world_rank()


def report(metrics, state):
    step = state["step"]
    if step in AS_DICT:
        train.report(metrics, checkpoint=Checkpoint.from_dict(state), validation=True)
    elif step == AS_FILES[0]:
        with tempfile.TemporaryDirectory() as directory:
            train.report(metrics, checkpoint=shard_in(directory, metrics))
    elif step == AS_FILES[1]:
        checkpoint = shard_in(train.staging_directory(), metrics)
        train.report(metrics, checkpoint=checkpoint, checkpoint_upload_mode=train.CheckpointUploadMode.ASYNC)
    else:
        train.report(metrics)


def shard_in(directory, metrics):
    """This rank's files of a checkpoint."""
    Path(directory, "deep").mkdir()
    Path(directory, "deep", f"rank-{rank()}.json").write_text(json.dumps(metrics["samples"]))
    return Checkpoint(directory)


def fail():
    """Rank 1 fails when all reports so far have arrived; the others wait for it in vain."""
    train.collective.barrier()
    if rank() == 1:
        raise RuntimeError(f"planned after report {FAILS_AFTER}")
    train.collective.barrier()


def validate(checkpoint, power):
    state = checkpoint.to_dict()
    return {"score": float(sum((weight**power).sum() for weight in state["model"].values()))}


class Watch(UserCallback):
    def __init__(self):
        self.reports = {}
        self.exceptions = []

    def after_report(self, run_context, metrics, checkpoint):
        files = sorted(path.name for path in Path(checkpoint.path).iterdir()) if checkpoint else None
        self.reports.setdefault(metrics[0]["step"], []).append((metrics, files))

    def after_exception(self, run_context, worker_exceptions):
        self.exceptions.append({rank: repr(error) for rank, error in worker_exceptions.items()})


def written(directory, num_workers=2):
    """The files of the dataset: five, with numbered rows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory.mkdir()
    for number, ids in enumerate(np.array_split(np.arange(ROWS_EACH * num_workers), 5)):
        pq.write_table(pa.table({"id": ids}), directory / f"part-{number}.parquet", row_group_size=4)
    return directory


def trained(path, files, *, num_workers=2, fails=True, **run_config):
    """Fit it in a directory, with the files of the dataset; the account of it."""
    from paceline.train.torch import TorchTrainer

    watch = Watch()
    rows = paceline.data.read_parquet(str(files), shuffle="files")
    rows = rows.map_batches(lambda batch: {**batch, "value": batch["id"] / 10.0})
    result = TorchTrainer(
        function,
        train_loop_config={"fails": fails},
        scaling_config=ScalingConfig(num_workers, placement_strategy="SPREAD"),
        run_config=RunConfig(
            name="run",
            storage_path=path,
            checkpoint_config=train.CheckpointConfig(2, "score", "min"),
            failure_config=FailureConfig(max_failures=1),
            callbacks=[watch],
            **run_config,
        ),
        validation_config=ValidationConfig(validate, task_config={"fn_kwargs": {"power": 2}}),
        datasets={"rows": rows},
    ).fit()
    return account(result, watch)


def account(result, watch):
    root = Path(result.path)
    manifests = root.glob("*/.manifest.json")
    return {
        "metrics": result.metrics_dataframe[["step", "loss"]].to_dict("list"),
        "samples": order_of(watch, "samples"),
        "rows": order_of(watch, "rows"),
        "returned": result.return_value,
        "best": [(Path(checkpoint.path).name, metrics) for checkpoint, metrics in result.best_checkpoints],
        "reports": watch.reports,
        "exceptions": watch.exceptions,
        "journal": journal(root),
        "manifests": {file.parent.name: describe_event(file.read_text(), root) for file in manifests},
        "files": hashes_of(root),
    }


def order_of(watch, name):
    """What each rank was given, step by step, the last attempt at a step counting."""
    return [metrics[name] for step in sorted(watch.reports) for metrics in watch.reports[step][-1][0]]


NOTES = ("run_described", "timestamp", "usage_measured", "diagnostic_file_written")
"""They tell of times, processes and hosts."""

TOLD_BY_THE_SYSTEM = ("at", "pid", "host", "address", "created_at", "crc32", "times", "took_s")


def describe_event(text, root):
    """JSON without what is another in every run."""
    where = str(root.parent)
    return json.loads(
        text.replace(where, "<storage>"),
        object_hook=lambda fields: {name: each for name, each in fields.items() if name not in TOLD_BY_THE_SYSTEM},
    )


def journal(root):
    """The events by kind and rank: among ranks, and beside validations, there is no order."""
    events = {}
    for line in (root / "journal.jsonl").read_text().splitlines():
        event = describe_event(line.partition(" ")[2], root)  # after its checksum
        if event["type"] in NOTES:
            continue
        whose = event.get("rank", event.get("staged", {}).get("rank"))
        events.setdefault(event["type"] if whose is None else f"{event['type']} of rank {whose}", []).append(event)
    return events


def hashes_of(root):
    paths = (path for checkpoint in root.glob("checkpoint_*") for path in checkpoint.rglob("[!.]*") if path.is_file())
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
