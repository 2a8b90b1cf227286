"""Storage that is slow while checkpoints are stored beside the training: the steps do not wait for it."""

import time

import oracle
import pytest

from paceline import train
from paceline._storage.files import LocalFiles
from paceline.testing import Faults
from paceline.train import Checkpoint, CheckpointUploadMode

EVERY = 10


def with_held_uploads(config):
    """`small`, whose checkpoints of every tenth step reach the disk only when nine more steps have been made."""
    model, write = oracle.Descent(config), LocalFiles.write_parts

    def hold(self, path, *args):
        number = int(path.parts[-3].removeprefix("checkpoint_"))
        while model.step < min(number + EVERY - 1, config["steps"]):
            time.sleep(0.002)
        return write(self, path, *args)

    LocalFiles.write_parts = hold
    while model.step < config["steps"]:
        loss = model.advance()
        checkpoint = Checkpoint.from_dict(model.state) if model.step % EVERY == 0 else None
        train.report({"step": model.step, "loss": loss}, checkpoint, checkpoint_upload_mode=CheckpointUploadMode.ASYNC)
    return model.weights


def test_steps_do_not_wait_for_slow_storage(survive):
    """A report that waited for its checkpoint would wait for ever."""
    name = "slow storage, ASYNC checkpoints"
    with survive(name, Faults(), with_held_uploads, steps=4 * EVERY):
        pass


@pytest.mark.chaos
@pytest.mark.seeds(2, few=0)
def test_a_run_on_slow_storage_only_takes_longer(seed, survive):
    faults = Faults(seed=seed).slow_write("*", delay_s=0.2)
    with survive("storage with 0.2 s per operation, SYNC checkpoints", faults) as (path, _):
        assert oracle.causes(path) == []
