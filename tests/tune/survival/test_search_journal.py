"""The journal of a search: cut anywhere, torn, lost, and held by one driver at a time."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from searching import finished, run_directories, told

from paceline import tune
from paceline._core.codec import valid_prefix
from paceline.train import RunHeldError
from paceline.tune.drive.advice import Advice
from paceline.tune.drive.events import decode
from paceline.tune.history import search_told_by
from paceline.tune.schedulers import ASHAScheduler

STEPS = 3
NUM = 3


def tuner_of(directory, log=None, seed=3, num_samples=NUM, scheduler=None, space=None):
    log = str(log) if log is not None else None

    def trial(config):
        last = tune.get_checkpoint()
        start = last.to_dict()["step"] if last else 0
        number = int(tune.get_context().get_trial_id())
        for step in range(start + 1, STEPS + 1):
            if log is not None:
                with open(log, "a") as steps:
                    steps.write(f"{number}.{step} ")
            saved = tune.Checkpoint.from_dict({"step": step})
            tune.report({"loss": config["x"] + 1 / step, "step": step}, checkpoint=saved)

    return tune.Tuner(
        trial,
        param_space=space or {"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=num_samples,
            seed=seed,
            max_concurrent_trials=1,
            scheduler=scheduler or ASHAScheduler(max_t=STEPS, grace_period=1, reduction_factor=2),
        ),
        run_config=tune.RunConfig(name="search", storage_path=str(directory)),
    )


def steps_in(log):
    return log.read_text().split() if log.exists() else []


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


def test_a_journal_that_is_cut_at_any_byte_is_understood(whole):
    """What is left tells of a search, and those who advise it can be told of it again."""
    data = (whole / "journal.jsonl").read_bytes()
    lengths = [len(line) for line in data.splitlines(keepends=True)]
    known = -1
    for cut in range(len(data) + 1):
        payloads = list(valid_prefix(data[:cut]))
        assert sum(lengths[: len(payloads)]) <= cut
        if len(payloads) == known:
            continue
        known = len(payloads)
        events = [decode(payload) for payload in payloads]
        search = search_told_by(events)
        assert len(search.trials) <= NUM
        tuner = tuner_of(whole.parent)
        advice = tuner._advice(3)
        assert isinstance(advice, Advice)
        again = search_told_by(())
        for event in events:
            again.apply(event)
            decided = advice.heard(event, again, again=True)
            assert decided == tuple(act for act in getattr(event, "then", ()) if act.by != "search"), (
                "told the same, the same is decided"
            )
            for act in getattr(event, "then", ()):
                again.take(act)
        assert repr(again.trials) == repr(search.trials)
    assert known == len(lengths), "all lines were seen"


def lines_to_cut_at():
    """Of the about 25 lines that there are: some in `make test`, all of the others in `make chaos`."""
    few = (1, 12)
    rest = [pytest.param(line, marks=pytest.mark.chaos) for line in range(2, 24) if line not in few]
    return [*few, *rest]


@pytest.mark.parametrize("num_lines", lines_to_cut_at())
def test_a_search_whose_journal_lost_its_end_comes_to_the_same_and_runs_nothing_again(whole, tmp_path, num_lines):
    """As after a power cut: the trials' own runs are complete, and the search knows less than they do."""
    lines = (whole / "journal.jsonl").read_bytes().splitlines(keepends=True)
    torn = lines[num_lines][: len(lines[num_lines]) // 2]
    search = copied(whole, tmp_path, b"".join(lines[:num_lines]) + torn)
    log = tmp_path / "log"
    tuner_of(tmp_path, log).fit()
    assert finished(search) == finished(whole)
    assert run_directories(search) == run_directories(whole)
    assert steps_in(log) == [], "all was run already"
    assert (search / "journal.jsonl.torn").read_bytes() == torn


class Slow(ASHAScheduler):
    """Time enough for a worker to start meanwhile."""

    def on_trial_result(self, trial, result):
        if trial.trial_id == "00002":
            time.sleep(0.3)
        return super().on_trial_result(trial, result)


def test_a_report_that_was_found_is_decided_upon_before_the_trial_goes_on(whole, tmp_path):
    """The last trial was stopped at its first report, which the search's journal does not tell of any more."""
    lines = (whole / "journal.jsonl").read_bytes().splitlines(keepends=True)
    stopped = max(number for number, line in enumerate(lines) if b'"TrialReported"' in line)
    search, log = copied(whole, tmp_path, b"".join(lines[:stopped])), tmp_path / "log"
    assert len(finished(search)["00002"]["rows"]) == 0
    tuner_of(tmp_path, log, scheduler=Slow(max_t=STEPS, grace_period=1, reduction_factor=2)).fit()
    assert finished(search) == finished(whole)
    assert steps_in(log) == [], "no worker was started in vain"


def test_a_search_whose_journal_is_lost_takes_up_the_runs_of_trials_that_are_drawn_again(whole, tmp_path):
    search, log = copied(whole, tmp_path, b""), tmp_path / "log"
    (search / "journal.jsonl").unlink()
    tuner_of(tmp_path, log).fit()
    assert finished(search) == finished(whole)
    assert run_directories(search) == run_directories(whole)
    assert steps_in(log) == []


def test_where_other_trials_are_drawn_the_runs_that_are_there_are_not_taken_for_theirs(whole, tmp_path, capfd):
    search, log = copied(whole, tmp_path, b""), tmp_path / "log"
    (search / "journal.jsonl").unlink()
    before = {run: (search / run / "journal.jsonl").read_bytes() for run in run_directories(whole)}
    grid = tuner_of(tmp_path, log, seed=4).fit()
    alone = tuner_of(tmp_path / "alone", seed=4).fit()
    assert [result.config for result in grid] == [result.config for result in alone]
    assert [result.metrics["loss"] for result in grid] == [result.metrics["loss"] for result in alone]
    assert {result.path.rpartition("/")[2] for result in grid} == {f"trial_0000{number}-1" for number in range(NUM)}
    assert {run: (search / run / "journal.jsonl").read_bytes() for run in before} == before, "left as they were"
    assert "holds a run that was made for something else" in capfd.readouterr().err
    assert len(steps_in(log)) == len(set(steps_in(log)))
    assert len(tuner_of(tmp_path, log, seed=4).fit()) == NUM, "and it can be read again"


def test_a_line_that_was_altered_ends_what_is_believed(whole, tmp_path):
    lines = (whole / "journal.jsonl").read_bytes().splitlines(keepends=True)
    altered = [*lines]
    altered[7] = altered[7].replace(b"0", b"1", 1)
    search = copied(whole, tmp_path, b"".join(altered))
    assert len(told(search).trials) <= NUM
    tuner_of(tmp_path).fit()
    assert finished(search) == finished(whole)


HELD = """
import sys, time
from paceline import tune

def trial(config):
    tune.report({"loss": 1})
    while True:
        time.sleep(0.01)

tune.Tuner(trial, run_config=tune.RunConfig(name="search", storage_path="searches")).fit()
"""


def test_a_second_driver_is_refused_within_a_second(tmp_path):
    (tmp_path / "held.py").write_text(HELD)
    with subprocess.Popen([sys.executable, "held.py"], cwd=tmp_path, stderr=subprocess.DEVNULL) as first:
        try:
            journal = tmp_path / "searches" / "search" / "journal.jsonl"
            while not journal.exists() or b'"TrialReported"' not in journal.read_bytes():
                assert first.poll() is None
                time.sleep(0.005)
            run_config = tune.RunConfig(name="search", storage_path=str(tmp_path / "searches"))
            before = journal.read_bytes()
            tuner = tune.Tuner(print, run_config=run_config)
            began = time.monotonic()
            with pytest.raises(RunHeldError, match=f"process {first.pid} on "):
                tuner.fit()
            assert time.monotonic() - began < 1
            assert journal.read_bytes() == before
            assert [result.metrics["loss"] for result in tuner.get_results()] == [1], "reading takes no lease"
        finally:
            first.send_signal(signal.SIGKILL)


def test_the_journal_is_plain_json_behind_a_checksum(whole):
    for line in (whole / "journal.jsonl").read_text().splitlines():
        assert len(line.split(" ", 1)[0]) == 8
        assert json.loads(line[9:])["type"]


def test_a_search_on_a_directory_that_cannot_be_written_is_refused_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        tuner_of(tmp_path / "file").fit()
    assert os.listdir(tmp_path) == ["file"]
