"""Population based training with real processes: what a clone begins from was committed, is read where it lies, stays
until it is no longer needed, and survives the driver.
"""

import random
import shutil

import pytest
from searching import Script, load_search, make_tuner

from paceline import tune
from paceline._control import journal
from paceline._control.events import CheckpointsFound, Committed, DriverStarted, PinsSet
from paceline._storage.run_location import RunLocation
from paceline.tune.driver import search_storage
from paceline.tune.driver.events import TrialCloned, TrialEnded, TrialReported, decode_raw
from paceline.tune.schedulers.scheduler import Exploit

STEPS = 8
NUM = 4

SCRIPT = f"""
import os, sys
from paceline import tune
from paceline.tune.schedulers import PopulationBasedTraining

def trial(config):
    last = tune.get_checkpoint()
    state = last.to_dict() if last else {{"score": 0.0, "made": []}}
    who = os.path.basename(tune.get_context().get_trial_dir())
    while len(state["made"]) < {STEPS}:
        # The state says by whom, and with what, each of its steps was made.
        state = {{"score": state["score"] + config["lr"], "made": [*state["made"], [who, config["lr"]]]}}
        tune.report(
            {{"score": state["score"], "made": state["made"]}}, checkpoint=tune.Checkpoint.from_dict(state)
        )

about = {{"perturbation_interval": 2, "quantile_fraction": 0.5, "synch": sys.argv[1] == "synch", "seed": 11}}
pbt = PopulationBasedTraining("training_iteration", hyperparam_mutations={{"lr": tune.uniform(0, 1)}}, **about)
grid = tune.Tuner(
    trial,
    param_space={{"lr": tune.uniform(0, 1)}},
    tune_config=tune.TuneConfig(metric="score", mode="max", num_samples={NUM}, scheduler=pbt, seed=5),
    run_config=tune.RunConfig(
        name="search", storage_path="searches", checkpoint_config=tune.CheckpointConfig(num_to_keep=1)
    ),
).fit()
assert not grid.errors, grid.errors
"""


def assert_lineages_hold(path):
    """How many clones there were; for each of them, all that is promised."""
    events = search_storage.load_past_events(RunLocation.from_path(str(path)))
    made = {}
    for event in events:
        if isinstance(event, TrialReported):
            made.setdefault((event.run, event.seq), decode_raw(event.metrics)["made"])
    search = load_search(path)
    clones = [event for event in events if isinstance(event, TrialCloned)]
    for clone in clones:
        assert clone.donor != clone.trial
        donor = made[clone.saved.run, clone.saved.seq]
        assert len(donor) == clone.saved.iteration, "training_iteration counts the steps of the state"
        assert committed(path, clone.saved.run, clone.saved.seq), "what it begins from was committed"
        first = made.get((clone.run, 1))
        if first is None:
            continue  # It was cloned once more before it had made a report.
        assert first[:-1] == donor, "the very state of its donor"
        assert first[-1][0] == clone.run
        began = next(e for e in journal.read_events(path / clone.run / "journal.jsonl") if isinstance(e, DriverStarted))
        assert began.initial == str(path / clone.saved.run / clone.saved.name), "by reference"
    assert {trial.status for trial in search.trials.values()} == {"TERMINATED"}
    for trial in search.trials.values():
        standing = search.trial_records[trial.trial_id]
        assert trial.iteration == STEPS
        if standing.last_seq:
            assert trial.last_result["made"] == made[standing.run, standing.last_seq]
            assert [who for who, _ in trial.last_result["made"]][-standing.last_seq :] == [
                standing.run
            ] * standing.last_seq
        else:
            assert trial.lineage[-1].iteration == STEPS, "nothing was left to do for a clone of one that had returned"
        manifests = (path / standing.run).glob("checkpoint_*/.manifest.json")
        kept = {int(manifest.parent.name.partition("_")[2]) for manifest in manifests}
        cloned = {event.saved.seq for event in clones if event.saved.run == standing.run}
        assert kept <= cloned | {standing.last_seq}, "num_to_keep=1, and what clones began from"
        assert [saved.run for saved in trial.lineage] == [e.saved.run for e in clones if e.trial == trial.trial_id]
    return len(clones)


def committed(path, run, seq):
    """By its driver, or by one that was lost before it could say so: then the next one has found the manifest."""
    found = set()
    for event in journal.read_events(path / run / "journal.jsonl"):
        if isinstance(event, Committed):
            found.add(event.record.seq)
        elif isinstance(event, CheckpointsFound):
            found |= {record.seq for record in event.records}
    return seq in found


def assert_donors_kept(path):
    """A donor that was under way when a clone began had pinned its checkpoint before."""
    events = search_storage.load_past_events(RunLocation.from_path(str(path)))
    ended = set()
    for event in events:
        if isinstance(event, TrialEnded):
            ended.add(event.trial)
        if isinstance(event, TrialCloned) and event.donor not in ended:
            told_by_donor = journal.read_events(path / event.saved.run / "journal.jsonl")
            pins = [e.seqs for e in told_by_donor if isinstance(e, PinsSet)]
            pins += [e.pinned for e in told_by_donor if isinstance(e, DriverStarted)]
            assert any(event.saved.seq in seqs for seqs in pins)


def survive(tmp_path, moments, kind="async", processes_in=None):
    with Script(tmp_path, SCRIPT, kind, processes_in=processes_in) as script:
        for moment in moments:
            if not script.kill(moment):
                break
        script.run()
    return assert_lineages_hold(script.path)


@pytest.mark.parametrize("kind", ["async", pytest.param("synch", marks=pytest.mark.chaos)])
def test_clones_begin_from_what_their_donors_have_committed_by_reference(tmp_path, kind):
    assert survive(tmp_path, [], kind) > 0
    assert_donors_kept(tmp_path / "searches" / "search")


@pytest.mark.slow
def test_a_population_resumes_after_its_driver_is_killed(tmp_path, processes_in):
    assert survive(tmp_path, [70], processes_in=processes_in) > 0


@pytest.mark.chaos
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["async", "synch"])
@pytest.mark.parametrize("seed", range(5))
def test_a_population_resumes_after_kills_at_random_moments(tmp_path, processes_in, seed, kind):
    dice = random.Random(seed)
    survive(tmp_path, [dice.randint(5, 60) for _ in range(5)], kind, processes_in)


class CloneOnce(tune.TrialScheduler):
    waits_for_checkpoints = True

    def on_trial_result(self, trial, result):
        if trial.trial_id.endswith("1") and not trial.lineage:
            return (Exploit(trial.trial_id, f"{trial.trial_id[:-1]}0", {"x": 7}, "as planned"),)
        return ()


def clone_once(tmp_path):
    def three_more(config):
        last = tune.get_checkpoint()
        done = last.to_dict()["done"] if last else []
        for _ in range(3):
            done = [*done, config["x"]]
            tune.report({"loss": 0, "done": done}, checkpoint=tune.Checkpoint.from_dict({"done": done}))

    run, space = {"checkpoint_config": {"num_to_keep": 1}}, {"x": tune.grid_search([0, 1])}
    return make_tuner(tmp_path, three_more, space, run, scheduler=CloneOnce()).fit()


@pytest.mark.parametrize("lost", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_clone_that_had_not_begun_begins_from_its_donor_or_fails_alone(tmp_path, lost):
    """The journal ends with the clone, and its run never was."""
    grid = clone_once(tmp_path)
    expected = grid[1].metrics_dataframe["done"].tolist()
    assert expected == [[1], [0, 0, 0, 7], [0, 0, 0, 7, 7], [0, 0, 0, 7, 7, 7]]
    assert grid[1].metrics_dataframe["training_iteration"].tolist() == [1, 4, 5, 6]
    assert grid[1].config == {"x": 7}

    search = tmp_path / "search"
    lines = (search / "journal.jsonl").read_bytes().splitlines(keepends=True)
    cloned = next(number for number, line in enumerate(lines) if b'"trial_cloned"' in line)
    (search / "journal.jsonl").write_bytes(b"".join(lines[: cloned + 1]))
    shutil.rmtree(search / "trial_00001-1")
    if lost:
        shutil.rmtree(search / "trial_00000" / "checkpoint_000003")
    again = clone_once(tmp_path)
    assert again[0].status == "TERMINATED"
    if lost:
        assert again[1].status == "ERROR"
        assert "cannot start trial_00001-1: checkpoint_000003" in again[1].why
    else:
        assert again[1].metrics_dataframe["done"].tolist() == expected
