"""`kill -9` of the driver at every line of its journal, and of driver and worker at once: the script, run again, ends
as one that nothing happened to.
"""

import os
import random
import signal

import oracle
import pytest
from lives import Script

from paceline.testing import At, Faults
from paceline.train import DataParallelTrainer
from processes import still_running

STEPS = 4
SEED = 20


def survive(tmp_path, faults, steps, undisturbed, fault_table, processes_in, name):
    """Run the script again and again until it ends by itself; then compare."""
    expected = undisturbed(DataParallelTrainer, oracle.small, steps)
    script = Script(tmp_path, faults=faults, steps=steps)
    path = script.path
    value = eval(faults, {"At": At, "Faults": Faults})
    num_lost = 0
    with fault_table.trying(name) as trial:
        while (code := script.lived()) != 0:
            assert code == -signal.SIGKILL, script.said
            alive = still_running(processes_in(tmp_path))
            assert alive == [], "processes two seconds after the driver was killed"
            assert os.listdir(tmp_path / "tmp") == [], "temporary files after the driver was killed"
            num_lost += 1
            assert num_lost <= len(value.all)
        oracle.assert_same(path, expected, weights=oracle.weights_of(path))
        trial.seconds = oracle.worst_stand(path, value)
    return num_lost


def num_lines():
    """In an undisturbed run: the driver starts, each rank is ready, reports and returns; every second report is
    staged by both and committed; the workers are gone."""
    return 1 + 2 + 2 * STEPS + 2 * (STEPS // 2) + STEPS // 2 + 2 + 1


ALL = list(range(1, num_lines() + 1))
FEW = sorted(random.Random(SEED).sample(ALL, 3))


@pytest.mark.parametrize("line", FEW)
def test_a_driver_killed_after_a_line_of_its_journal(tmp_path, temporary, line, undisturbed, fault_table, processes_in):
    faults = f"Faults().lose_driver(after={line})"
    name = "driver killed after a journal line"
    assert survive(tmp_path, faults, STEPS, undisturbed, fault_table, processes_in, name) == 1


@pytest.mark.chaos
@pytest.mark.parametrize("line", ALL)
def test_a_driver_killed_after_any_line_of_its_journal(
    tmp_path, temporary, line, undisturbed, fault_table, processes_in
):
    faults = f"Faults().lose_driver(after={line})"
    name = "driver killed after a journal line"
    assert survive(tmp_path, faults, STEPS, undisturbed, fault_table, processes_in, name) == 1


@pytest.mark.chaos
@pytest.mark.parametrize("every", [3, 5, 7])
def test_drivers_killed_one_after_the_other(tmp_path, temporary, every, undisturbed, fault_table, processes_in):
    """Also while they recover what the one before them left."""
    faults = "Faults()" + "".join(f".lose_driver(after={line})" for line in range(every, 12 * every, every))
    name = "eleven drivers killed, one after the other"
    num_lost = survive(tmp_path, faults, STEPS, undisturbed, fault_table, processes_in, name)
    assert num_lost >= 4


BOTH = [At("step", 3), At("report", 3), At("snapshot", 2), At("upload", 2, 3), At("commit", 2, 2), At("exit")]


@pytest.mark.parametrize(("rank", "at"), [(1, At("upload", 2, 3))], ids=str)
def test_driver_and_worker_killed_at_once(tmp_path, temporary, rank, at, undisturbed, fault_table, processes_in):
    faults = f"Faults().lose_all({rank}, at={at!r})"
    name = f"driver and rank killed in {at.phase}"
    assert survive(tmp_path, faults, STEPS, undisturbed, fault_table, processes_in, name) == 1


@pytest.mark.chaos
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("at", BOTH, ids=str)
def test_driver_and_worker_killed_at_once_anywhere(
    tmp_path, temporary, rank, at, undisturbed, fault_table, processes_in
):
    faults = f"Faults().lose_all({rank}, at={at!r})"
    name = f"driver and rank killed in {at.phase}"
    assert survive(tmp_path, faults, STEPS, undisturbed, fault_table, processes_in, name) == 1
