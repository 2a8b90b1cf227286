"""Storage that is slow while checkpoints are stored beside the training: the steps do not wait for it."""

import statistics
import time
from pathlib import Path

import oracle
import pytest

from paceline import train
from paceline.testing import Faults
from paceline.train import Checkpoint, CheckpointUploadMode, DataParallelTrainer

STEPS = 120
EVERY = 10


def timed(config):
    """`small` at a pace, each step with its time: a checkpoint is stored beside every ten of them."""
    model = oracle.Descent(config)
    took = []
    while model.step < config["steps"]:
        began = time.perf_counter()
        loss = model.advance()
        time.sleep(0.01)
        checkpoint = Checkpoint.from_dict(model.state) if model.step % EVERY == 0 else None
        train.report({"step": model.step, "loss": loss}, checkpoint, checkpoint_upload_mode=CheckpointUploadMode.ASYNC)
        took.append(time.perf_counter() - began)
    Path(f"{config['took']}-{train.get_context().get_world_rank()}").write_text("\n".join(map(str, took)))
    return model.weights


def p95_ms(path, faults):
    path.mkdir()
    config = {"took": str(path / "took")}
    result = faults.applied_to(oracle.trainer_of(DataParallelTrainer, timed, path, STEPS, config=config)).fit()
    took = [float(line) for rank in (0, 1) for line in Path(f"{config['took']}-{rank}").read_text().splitlines()]
    return result, 1000 * statistics.quantiles(took, n=20)[-1]


@pytest.mark.seeds(3)
def test_steps_do_not_wait_for_slow_storage(tmp_path, temporary, seed, undisturbed, fault_table):
    """A save takes 60 ms of the 100 ms to the next one: one step in ten would be that late if it waited."""
    expected = undisturbed(DataParallelTrainer, oracle.small, STEPS)
    faults = Faults(seed=seed).slow_write("*rank_*/state.bin", delay_s=0.06)
    with fault_table.trying("slow storage, checkpoints stored beside the training (ASYNC)"):
        _, usual_ms = p95_ms(tmp_path / "usual", Faults())
        result, slow_ms = p95_ms(tmp_path / "slow", faults)
        oracle.assert_same(result.path, expected)
        # A core that others use too makes steps late by a little.
        assert slow_ms < 1.5 * usual_ms + 10, f"{usual_ms:.1f} ms became {slow_ms:.1f} ms"


@pytest.mark.chaos
@pytest.mark.seeds(2, few=0)
def test_a_run_on_slow_storage_only_takes_longer(tmp_path, temporary, seed, undisturbed, fault_table):
    expected = undisturbed(DataParallelTrainer, oracle.small)
    with fault_table.trying("storage with 0.2 s for each act, checkpoints waited for (SYNC)"):
        faults = Faults(seed=seed).slow_write("*", delay_s=0.2)
        result = faults.applied_to(oracle.trainer_of(DataParallelTrainer, oracle.small, tmp_path)).fit()
        oracle.assert_same(result.path, expected)
        assert oracle.causes(result.path) == []
