"""The journal of a search: cut anywhere, torn, lost, and held by one driver at a time."""

import os
import shutil
import time

import pytest
from searching import Script, finished, make_tuner, run_directories, steps_in, steps_of

from paceline import tune
from paceline.train import RunHeldError
from paceline.tune.schedulers import ASHAScheduler

STEPS = 3
NUM = 3


def tuner_of(directory, log=None, seed=3, scheduler=ASHAScheduler):
    asha = scheduler(max_t=STEPS, grace_period=1, reduction_factor=2)
    return make_tuner(directory, steps_of(STEPS, log), num_samples=NUM, seed=seed, scheduler=asha)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A search that nothing happened to."""
    directory = tmp_path_factory.mktemp("whole")
    tuner_of(directory).fit()
    return directory / "search"


def copied(whole, tmp_path, journal):
    shutil.copytree(whole, tmp_path / "search", ignore=lambda path, names: {".lease"} & set(names))
    (tmp_path / "search" / "journal.jsonl").write_bytes(journal)
    return tmp_path / "search"


def lines_to_cut_at():
    """Of the about 25 lines that there are: some in `make test`, all of the others in `make chaos`; 0: all are lost."""
    return [0, 12, *(pytest.param(line, marks=pytest.mark.chaos) for line in range(1, 24) if line != 12)]


@pytest.mark.parametrize("num_lines", lines_to_cut_at())
def test_a_search_whose_journal_lost_its_end_comes_to_the_same_and_runs_nothing_again(whole, tmp_path, num_lines):
    """As after a power cut: the trials' own runs are complete, and the search knows less than they do."""
    lines = (whole / "journal.jsonl").read_bytes().splitlines(keepends=True)
    torn = lines[num_lines][: len(lines[num_lines]) // 2] if num_lines else b""
    search, log = copied(whole, tmp_path, b"".join(lines[:num_lines]) + torn), tmp_path / "log"
    if num_lines == 0:
        (search / "journal.jsonl").unlink()
    tuner_of(tmp_path, log).fit()
    assert finished(search) == finished(whole)
    assert run_directories(search) == run_directories(whole)
    assert steps_in(log) == [], "all was run already"
    assert not torn or (search / "journal.jsonl.torn").read_bytes() == torn


class Slow(ASHAScheduler):
    """Time enough for a worker to start meanwhile."""

    def on_trial_result(self, trial, result):
        if trial.trial_id.endswith("2"):
            time.sleep(0.3)
        return super().on_trial_result(trial, result)


def test_decides_on_a_recovered_report_before_the_trial_resumes(whole, tmp_path):
    """The last trial was stopped at its first report, which the search's journal does not tell of any more."""
    lines = (whole / "journal.jsonl").read_bytes().splitlines(keepends=True)
    stopped = max(number for number, line in enumerate(lines) if b'"trial_reported"' in line)
    search, log = copied(whole, tmp_path, b"".join(lines[:stopped])), tmp_path / "log"
    assert len(finished(search)["00002"]["rows"]) == 0
    tuner_of(tmp_path, log, scheduler=Slow).fit()
    assert finished(search) == finished(whole)
    assert steps_in(log) == [], "no worker was started in vain"


@pytest.mark.slow
def test_trials_drawn_anew_do_not_resume_runs_of_earlier_trials(whole, tmp_path, capfd):
    search, log = copied(whole, tmp_path, b""), tmp_path / "log"
    (search / "journal.jsonl").unlink()
    before = {run: (search / run / "journal.jsonl").read_bytes() for run in run_directories(whole)}
    grid = tuner_of(tmp_path, log, seed=4).fit()
    alone = tuner_of(tmp_path / "alone", seed=4).fit()
    assert [result.config for result in grid] == [result.config for result in alone]
    assert [result.metrics["loss"] for result in grid] == [result.metrics["loss"] for result in alone]
    assert {result.path.rpartition("/")[2] for result in grid} == {f"trial_0000{number}-1" for number in range(NUM)}
    assert {run: (search / run / "journal.jsonl").read_bytes() for run in before} == before, "left as they were"
    assert "already contains a different run" in capfd.readouterr().err
    assert len(steps_in(log)) == len(set(steps_in(log)))
    assert len(tuner_of(tmp_path, log, seed=4).fit()) == NUM, "and it can be read again"


HELD = """
import time
from paceline import tune

def trial(config):
    tune.report({"loss": 1})
    while True:
        time.sleep(0.01)

tune.Tuner(trial, run_config=tune.RunConfig(name="search", storage_path="searches")).fit()
"""


def test_a_second_driver_is_refused_and_changes_nothing(tmp_path):
    with Script(tmp_path, HELD) as script:
        first = script.start()
        journal = script.path / "journal.jsonl"
        assert script.wait_until(first, lambda: journal.exists() and b'"trial_reported"' in journal.read_bytes())
        before = journal.read_bytes()
        tuner = tune.Tuner(print, run_config=tune.RunConfig(name="search", storage_path=str(tmp_path / "searches")))
        with pytest.raises(RunHeldError, match=f"process {first.pid} on "):
            tuner.fit()
        assert journal.read_bytes() == before
        assert [result.metrics["loss"] for result in tuner.get_results()] == [1], "reading takes no lease"


def test_a_search_on_a_directory_that_cannot_be_written_is_refused_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        tuner_of(tmp_path / "file").fit()
    assert os.listdir(tmp_path) == ["file"]
