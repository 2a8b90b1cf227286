"""`kill -9` of the driver at every line of its journal, and of driver and worker at once: the script, run again, ends
as one that nothing happened to.
"""

import os

import oracle
import pytest
from lives import Script, sweep

from paceline.testing import At, Faults
from paceline.train import DataParallelTrainer
from processes import still_running

STEPS = 4
NUM_LINES = 1 + 2 + 2 * STEPS + 2 * (STEPS // 2) + STEPS // 2 + 2 + 1
"""Of the journal of an undisturbed run: the driver starts, each rank is ready, reports and returns; every second report
is staged by both and committed; the workers are gone."""
BOTH = [At("step", 3), At("report", 3), At("snapshot", 2), At("upload", 2, 3), At("commit", 2, 2), At("exit")]


@pytest.fixture
def outlive(tmp_path, temporary, undisturbed, fault_table, processes_in):
    """Runs the script again and again until it ends by itself, compares, and returns how many drivers were lost."""

    def assert_nothing_is_left():
        alive = still_running(processes_in(tmp_path), within_s=oracle.GONE_WITHIN_S)
        assert alive == [], "processes are left after the driver was killed"
        assert os.listdir(tmp_path / "tmp") == [], "temporary files after the driver was killed"

    def outlive(name, faults):
        expected = undisturbed(DataParallelTrainer, oracle.small, STEPS)
        script = Script(tmp_path, faults=faults, steps=STEPS)
        value = eval(faults, {"At": At, "Faults": Faults})
        with fault_table.trying(name) as trial:
            num_lost = script.run_until_it_ends(len(value.all), assert_nothing_is_left)
            oracle.assert_same(script.path, expected, weights=oracle.weights_of(script.path))
            trial.seconds = oracle.worst_stand(script.path, value)
        return num_lost

    return outlive


@pytest.mark.parametrize("line", sweep([(line,) for line in range(1, NUM_LINES + 1)], few=[(13,)]))
def test_a_driver_killed_after_any_line_of_its_journal(line, outlive):
    assert outlive("driver killed after a journal line", f"Faults().lose_driver(after={line})") == 1


@pytest.mark.chaos
@pytest.mark.parametrize("every", [3, 5, 7])
def test_drivers_killed_one_after_the_other(every, outlive):
    """Also while they recover what the one before them left."""
    faults = "Faults()" + "".join(f".lose_driver(after={line})" for line in range(every, 12 * every, every))
    assert outlive("eleven drivers killed in a row", faults) >= 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "at"), sweep([(rank, at) for at in BOTH for rank in (0, 1)], few=[(1, At("upload", 2, 3))]), ids=str
)
def test_driver_and_worker_killed_at_once_anywhere(rank, at, outlive):
    assert outlive(f"driver and rank killed in {at.phase}", f"Faults().lose_all({rank}, at={at!r})") == 1
