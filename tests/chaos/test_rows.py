"""Rows of datasets under kills at random moments, of workers, of data processes and of the driver: each comes once.

What a rank has been given lies in its checkpoints, so that at the end the last one tells which rows the run was trained
on. The seed is in the name of the test.
"""

import json
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline.train import Result
from processes import still_running

EPOCHS = 3
NUM_ROWS = 6000

SCRIPT = """
import json, pathlib, sys, tempfile
import paceline.data
from paceline import train
from paceline.testing import Faults
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

def function(config):
    rank = train.get_context().get_world_rank()
    name = f"rank_{rank}.json"
    last, given = train.get_checkpoint(), [[]]
    if last is not None:
        with last.as_directory() as directory:
            given = json.loads(pathlib.Path(directory, name).read_text())
    shard = train.get_dataset_shard("train")
    while len(given) <= config["epochs"]:
        for batch in shard.iter_batches(batch_size=100, local_shuffle_buffer_size=700):
            given[-1] += batch["id"].tolist()
            with tempfile.TemporaryDirectory() as directory:
                pathlib.Path(directory, name).write_text(json.dumps(given))
                train.report({"given": sum(map(len, given))}, checkpoint=Checkpoint.from_directory(directory))
        given.append([])

if __name__ == "__main__":
    seed, shuffles = map(int, sys.argv[1:])
    dataset = paceline.data.read_parquet("files", shuffle="files").map_batches(lambda b: {"id": b["id"]})
    dataset = dataset.filter(lambda row: row["id"] % 7 != 3)
    if shuffles:
        dataset = dataset.random_shuffle(seed=5)
    trainer = DataParallelTrainer(
        function,
        train_loop_config={"epochs": EPOCHS},
        datasets={"train": dataset},
        scaling_config=ScalingConfig(2),
        run_config=RunConfig(name="run", storage_path="runs", failure_config=FailureConfig(max_failures=40)),
    )
    faults = Faults(seed=seed).kills(3, phases=("data", "step", "report", "upload", "commit"), num_reports=60)
    faults.applied_to(trainer).fit()
""".replace("EPOCHS", str(EPOCHS))


def write_files(tmp_path):
    (tmp_path / "files").mkdir()
    for number, part in enumerate(np.array_split(np.arange(NUM_ROWS), 6)):
        pq.write_table(pa.table({"id": part}), tmp_path / "files" / f"{number}.parquet", row_group_size=250)
    (tmp_path / "script.py").write_text(SCRIPT)


def run_once(tmp_path, arguments, dice, *, dies):
    """Run the script once; data processes of it are killed after a while, and perhaps the script itself."""
    with (tmp_path / "err").open("ab") as err:
        command = [sys.executable, "script.py", *map(str, arguments)]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=err)
    timers = [threading.Timer(dice.uniform(0.8, 2.5), kill_one, (process.pid, dice.random())) for _ in range(2)]
    if dies:
        timers.append(threading.Timer(dice.uniform(1.0, 3.0), process.kill))
    for timer in timers:
        timer.start()
    code = process.wait()
    for timer in timers:
        timer.cancel()
        timer.join()
    assert code in (0, -signal.SIGKILL), (tmp_path / "err").read_text()[-3000:]
    return code


def kill_one(pid, chance):
    """Kill some process that was forked for the script: a worker or a data process."""
    try:
        forked = [child for child in psutil.Process(pid).children(recursive=True) if child.ppid() != pid]
        if forked:
            forked[int(chance * len(forked))].kill()
    except psutil.NoSuchProcess:
        pass  # the script has ended meanwhile


@pytest.mark.slow
@pytest.mark.parametrize("shuffles", [0, 1], ids=["windows", "full"])
@pytest.mark.seeds(10)
@pytest.mark.timeout(900)
def test_every_row_comes_once_in_every_epoch_whoever_is_killed(tmp_path, seed, shuffles, processes_in, fault_table):
    dice = random.Random(seed)
    write_files(tmp_path)
    with fault_table.trying("workers, data processes and drivers killed while reading datasets"):
        for life in range(12):
            if run_once(tmp_path, (seed, shuffles), dice, dies=life < 2) == 0:
                break
            assert still_running(processes_in(tmp_path), within_s=60) == [], f"left behind, seed {seed}"
        else:
            pytest.fail(f"seed {seed} did not end: {(tmp_path / 'err').read_text()[-3000:]}")
        result = Result.from_path(tmp_path / "runs" / "run")
        with result.checkpoint.as_directory() as directory:
            ranks = [json.loads(Path(directory, f"rank_{rank}.json").read_text()) for rank in (0, 1)]
        rows = [number for number in range(NUM_ROWS) if number % 7 != 3]
        for epoch in range(EPOCHS):
            counts = Counter(ranks[0][epoch] + ranks[1][epoch])
            assert set(counts.values()) == {1}, f"epoch {epoch}, seed {seed}: some rows came twice"
            missing = set(rows) - set(counts)
            assert not set(counts) - set(rows)
            assert len(missing) <= 1, f"epoch {epoch}, seed {seed}: {len(missing)} rows never came"
