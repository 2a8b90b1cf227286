"""Drivers that were started in unusual surroundings: without standard streams, in a deleted directory, by
`multiprocessing`."""

import subprocess
import sys

import pytest

TRAIN = """
import multiprocessing, os, sys, traceback
from paceline import data
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig

class Value:
    pass

def standard_descriptors():
    return [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)]

def function():
    print("a line of a worker")
    return standard_descriptors(), isinstance(Value(), Value), os.readlink("/proc/self/cwd")

def fit(storage, num_workers=1):
    config = RunConfig(name=f"run_{num_workers}", storage_path=storage)
    scaling = ScalingConfig(num_workers=num_workers)
    return DataParallelTrainer(function, scaling_config=scaling, run_config=config).fit().return_value
"""

CLOSED = """
try:
    text = repr((fit("runs"), fit("runs", 0)[0], standard_descriptors(), (sys.stdout, sys.stderr)))
except BaseException:
    text = traceback.format_exc()
with open("outcome", "w") as file:
    file.write(text)
"""


def test_a_driver_without_standard_streams(tmp_path):
    (tmp_path / "script.py").write_text(TRAIN + CLOSED)
    command = ["sh", "-c", 'exec "$0" script.py <&- >&- 2>&-', sys.executable]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=240)
    log, null = str(tmp_path / "runs/run_1/logs/attempt_1/rank_0.log"), ["/dev/null"] * 3
    worker = [["/dev/null", log, log], True, str(tmp_path)]
    assert (tmp_path / "outcome").read_text() == repr((worker, null, null, (None, None)))
    assert "a line of a worker" in (tmp_path / "runs/run_1/logs/attempt_1/rank_0.log").read_text()


DELETED = """
os.mkdir("gone")
os.chdir("gone")
os.rmdir("../gone")
print(fit(sys.argv[1])[2], data.range(2_000_000).sort("id").take(1))
for attempt in (lambda: fit("relative"), lambda: data.read_csv("relative")):
    try:
        attempt()
    except FileNotFoundError as error:
        print(error)
"""


def test_a_driver_in_a_deleted_directory(run_script, tmp_path):
    ended = run_script(TRAIN + DELETED, str(tmp_path / "runs"))
    rows, *errors = ended.stdout.replace("[rank 0] a line of a worker\n", "").splitlines()
    assert rows == f"{tmp_path}/gone (deleted) [{{'id': 0}}]", ended.stderr
    message = "cannot resolve the relative path 'relative': the working directory was deleted"
    assert errors == [message, "", "hint: pass an absolute path, or change to a directory that exists"] * 2


CHILD = """
def run():
    print(fit("runs")[1], data.range(2_000_000).map_batches(lambda batch: batch | {"x": Value and batch["id"]}).count())

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=run, daemon=sys.argv[2] == "daemonic")
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.parametrize("kind", ["daemonic", pytest.param("plain", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", ["spawn", pytest.param("fork", marks=pytest.mark.slow)])
def test_a_driver_that_multiprocessing_started(run_script, method, kind):
    ended = run_script(TRAIN + CHILD, method, kind)
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, ["True 2000000"]), ended.stderr
