"""What a dead attempt had written of a checkpoint is no part of the one that a later attempt makes under that name."""

import os
import pathlib

import oracle
import pytest
from lives import sweep

from paceline import train
from paceline.testing import At, Faults
from paceline.train import Checkpoint, DataParallelTrainer


def with_files(config):
    """Each attempt gives its checkpoint other files: two of each rank, named after how many lines its notes had."""
    notes = pathlib.Path(config["notes"])
    rank = train.get_context().get_world_rank()
    last = train.get_checkpoint()
    step = 0
    if last is not None:
        with last.as_directory() as directory:
            step = int(pathlib.Path(directory, "step").read_text())
    if rank == 0:
        with notes.open("a") as file:
            file.write("began\n")
    train.collective.barrier()
    life = len(notes.read_text().splitlines())
    while step < 4:
        step += 1
        checkpoint = None
        if step % 2 == 0:
            directory = train.staging_directory()
            for part in ("a", "b"):
                (directory / f"rank{rank}-life{life}-{part}").write_bytes(b"x" * 1000)
            (directory / "step").write_text(str(step))
            checkpoint = Checkpoint.from_directory(directory)
        train.report({"step": step, "life": life}, checkpoint=checkpoint)


MOMENTS = [At("upload", 4, call) for call in (1, 2, 3)] + [At("commit", 4, call) for call in (1, 3, 5)]
ALL = [(rank, at) for at in MOMENTS for rank in (0, 1)]


@pytest.mark.parametrize(("rank", "at"), sweep(ALL, few=[(1, At("upload", 4, 2))]), ids=str)
def test_a_checkpoint_has_only_files_of_the_attempt_that_made_it(tmp_path, temporary, rank, at, fault_table):
    faults = Faults().kill(rank, at)
    with fault_table.trying("partial checkpoint left by a dead attempt") as trial:
        config = {"notes": str(tmp_path / "notes")}
        result = faults.applied_to(oracle.trainer_of(DataParallelTrainer, with_files, tmp_path, config=config)).fit()
        assert faults.unfired(result.path) == []
        result.checkpoint.verify()
        with result.checkpoint.as_directory() as directory:
            names = sorted(name for name in os.listdir(directory) if name.startswith("rank"))
        life = max(int(name.split("life")[1].split("-")[0]) for name in names)
        assert names == [f"rank{rank}-life{life}-{part}" for rank in (0, 1) for part in ("a", "b")]
        assert result.metrics_dataframe["step"].tolist() == [1, 2, 3, 4]
        trial.seconds = oracle.worst_stand(result.path, faults)
