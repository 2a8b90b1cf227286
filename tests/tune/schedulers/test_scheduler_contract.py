"""What all schedulers have in common, and schedulers as people wrote them for Ray Tune."""

import random

import pytest
from tuners import make_tuner

from paceline import tune
from paceline.tune import schedulers
from paceline.tune.schedulers import FIFOScheduler, ResourceChangingScheduler, TrialScheduler, create_scheduler
from paceline.tune.schedulers.resource_changing_scheduler import DistributeResourcesToTopJob
from paceline.tune.schedulers.scheduler import Exploit
from paceline.tune.trial import Trial, TrialCheckpoint
from tune.schedulers import played_search

COMMON = {"metric": "loss", "mode": "min", "time_attr": "training_iteration"}
ARGUMENTS = {
    "fifo": {},
    "asha": {**COMMON, "max_t": 20, "brackets": 2},
    "hyperband": {**COMMON, "max_t": 9},
    "hb_bohb": {**COMMON, "max_t": 9},
    "median_stopping_rule": {**COMMON, "grace_period": 1, "min_samples_required": 2},
    "pbt": {**COMMON, "perturbation_interval": 2, "hyperparam_mutations": {"lr": lambda: 1.0}, "seed": 1},
    "pb2": {**COMMON, "perturbation_interval": 2, "hyperparam_bounds": {"lr": [0.1, 1.0]}, "seed": 1},
}


def tell_about_reports(scheduler, steps):
    """Answers to reports of eight trials, each of which has a checkpoint."""
    answers = []
    for number, iteration in steps:
        saved = TrialCheckpoint("run", iteration, f"c{iteration}", iteration)
        trial = Trial(f"{number:05d}", {"lr": 0.5}, "RUNNING", checkpoint=saved, iteration=iteration)
        result = {"training_iteration": iteration, "loss": random.Random(number * 31 + iteration).random()}
        answers.append(scheduler.on_trial_result(None, trial, result))
    return answers


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_scheduler_restored_from_a_file_decides_as_the_one_that_was_saved(name, tmp_path):
    saved, restored = (create_scheduler(name, **ARGUMENTS[name]) for _ in range(2))
    for number in range(8):
        saved.on_trial_add(None, Trial(f"{number:05d}", {"lr": 0.5}))
    steps = [(number, iteration) for iteration in range(1, 13) for number in range(8)]
    tell_about_reports(saved, steps[:3])
    saved.save(tmp_path / "state.json")
    restored.restore(tmp_path / "state.json")
    expected = tell_about_reports(saved, steps[3:])
    assert tell_about_reports(restored, steps[3:]) == expected
    assert name == "fifo" or any(expected), "a scheduler that decides nothing shows nothing"
    assert saved.debug_string() == restored.debug_string()
    assert saved.supports_buffered_results == (name == "fifo")


def test_a_state_of_another_class_is_refused(tmp_path):
    create_scheduler("asha").save(tmp_path / "state")
    with pytest.raises(ValueError, match="must be one of FIFOScheduler, got 'AsyncHyperBandScheduler'"):
        FIFOScheduler().restore(tmp_path / "state")
    with pytest.raises(ValueError, match="scheduler must be 'fifo', 'async_hyperband'"):
        create_scheduler("none of them")
    (tmp_path / "state").write_text('{"class": "FIFOScheduler", "state": {"_x": {"kind": "os:system", "number": 0}}}')
    with pytest.raises(ValueError, match="no dataclass of"):
        FIFOScheduler().restore(tmp_path / "state")


def test_scores_of_a_population_and_the_state_of_brackets():
    pbt = create_scheduler("pbt", **ARGUMENTS["pbt"])
    answers = tell_about_reports(pbt, [(number, time) for time in range(2, 18, 2) for number in range(4)])
    num_clones = sum(isinstance(action, Exploit) for answer in answers for action in answer)
    assert num_clones
    trials = [Trial("00001", {}), Trial("00002", {}, "TERMINATED"), Trial("00009", {})]
    assert pbt.last_scores(trials) == [-random.Random(31 + 16).random()]
    assert pbt.debug_string() == f"PopulationBasedTraining: {num_clones} perturbs"
    pbt.reset_stats()
    assert pbt.debug_string() == "PopulationBasedTraining: 0 perturbs"
    hyperband = create_scheduler("hyperband", metric="loss", mode="min", max_t=9)
    played_search.add(hyperband, "a", "b", "c", "d")
    assert hyperband.state() == {"num_brackets": 2, "num_open_brackets": 2, "num_trials": 4}


def train(config):
    saved = tune.get_checkpoint()
    for step in range(saved.to_dict()["step"] + 1 if saved else 1, config["steps"] + 1):
        cpus = tune.get_context().get_trial_resources()["CPU"]
        checkpoint = tune.Checkpoint.from_dict({"step": step})
        tune.report({"loss": config["x"] / step, "step": step, "cpus": cpus}, checkpoint=checkpoint)


class WrittenForRay(FIFOScheduler):
    """Pauses each trial at its second report, resumes them in reverse order, and stops one by way of the controller."""

    def __init__(self):
        self.events = []

    def on_trial_add(self, tune_controller, trial):
        self.events.append(("add", trial.trial_id[-1]))

    def on_trial_result(self, tune_controller, trial, result):
        assert tune_controller.get_trial(trial.trial_id) == trial
        if trial.config["x"] == 3 and trial.iteration == 3:
            tune_controller.stop_trial(trial)
            return TrialScheduler.NOOP
        return TrialScheduler.PAUSE if trial.iteration == 2 else TrialScheduler.CONTINUE

    def choose_trial_to_run(self, tune_controller):
        trials = tune_controller.get_trials()
        pending = [trial for trial in trials if trial.status == Trial.PENDING]
        paused = [trial for trial in reversed(trials) if trial.status == Trial.PAUSED]
        chosen = next(iter(pending or (paused if len(trials) == 3 else [])), None)
        if chosen is not None:
            self.events.append(("run", chosen.trial_id[-1]))
        return chosen

    def on_trial_complete(self, tune_controller, trial, result):
        self.events.append(("complete", trial.trial_id[-1]))
        super().on_trial_complete(tune_controller, trial, result)


def test_a_scheduler_written_for_ray_pauses_resumes_and_stops_trials(tmp_path):
    scheduler = WrittenForRay()
    space = {"x": tune.grid_search([1, 2, 3]), "steps": 4}
    results = make_tuner(tmp_path, train, space, scheduler=scheduler, max_concurrent_trials=1).fit()
    assert [result.metrics["step"] for result in results] == [4, 4, 3]
    events = [event for event in scheduler.events if event[0] != "add"]
    runs = [trial for kind, trial in events if kind == "run"]
    assert list(dict.fromkeys(runs[::-1]))[::-1] == ["2", "1", "0"], "resumed in reverse order"
    assert [trial for kind, trial in events if kind == "complete"] == ["1", "0"]


class WithoutController(TrialScheduler):
    def on_trial_result(self, trial, result):
        return self.STOP if trial.iteration == 2 else super().on_trial_result(trial, result) or self.CONTINUE


@pytest.mark.parametrize(
    "call", [lambda s, *args: s.on_trial_result(*args), lambda s, *args: s.on_trial_result(0, *args)]
)
def test_hooks_are_called_with_a_controller_and_without(call):
    assert call(WithoutController(), Trial("a", {}, iteration=2), {}) == "STOP"
    assert call(WithoutController(), Trial("a", {}, iteration=1), {}) == "CONTINUE"
    named = WithoutController().on_trial_result(tune_controller=None, trial=Trial("a", {}, iteration=2), result={})
    assert named == "STOP"


class Controller:
    def __init__(self, total, *trials):
        self.get_total_resources = lambda: total
        self.get_live_trials = lambda: list(trials)


def make_trial(number, loss=None, **resources):
    result = None if loss is None else {"loss": loss}
    return Trial(f"{number}", {}, "RUNNING", result, resources=tune.PlacementGroupFactory([resources]))


@pytest.mark.parametrize(
    ("total", "num_trials", "arguments", "expected"),
    [
        ({"CPU": 8}, 2, {}, [{"CPU": 4}]),
        ({"CPU": 8, "GPU": 2}, 3, {}, [{"CPU": 2}]),
        ({"CPU": 8}, 2, {"increase_by_times": 1}, [{"CPU": 2}]),
        ({"CPU": 8}, 2, {"reserve_resources": {"CPU": 2}}, [{"CPU": 3}]),
        ({"CPU": 8}, 2, {"add_bundles": True}, [{"CPU": 1}] * 4),
        ({"CPU": 8, "GPU": 2}, 2, {"increase_by": {"CPU": 2, "GPU": 1}}, [{"CPU": 3, "GPU": 1}]),
        ({"CPU": 1}, 3, {}, [{"CPU": 1}]),
    ],
)
def test_resources_are_distributed_evenly(total, num_trials, arguments, expected):
    trials = [make_trial(number, CPU=1) for number in range(num_trials)]
    scheduler = ResourceChangingScheduler(None, schedulers.resource_changing_scheduler.DistributeResources(**arguments))
    controller = Controller(total, *trials)
    scheduler.on_trial_add(controller, trials[0])
    got = scheduler.resources_allocation_function(controller, trials[0], {}, scheduler)
    assert list(got.bundles) == expected
    changes = scheduler.reallocate_trial_resources_if_needed(controller, trials[0], {})
    assert changes == (None if expected == [{"CPU": 1}] else got)


def test_all_free_resources_go_to_the_best_trial():
    trials = [make_trial(0, 0.5, CPU=1), make_trial(1, 0.25, CPU=1), make_trial(2, float("nan"), CPU=1)]
    scheduler = ResourceChangingScheduler(None, DistributeResourcesToTopJob(metric="loss", mode="min"))
    controller = Controller({"CPU": 8}, *trials)
    scheduler.on_trial_add(controller, trials[0])
    changes = [scheduler.reallocate_trial_resources_if_needed(controller, trial, {}) for trial in trials]
    assert [change and change.required_resources for change in changes] == [None, {"CPU": 6}, None]


def test_a_trial_continues_from_its_checkpoint_with_more_cores_once_others_have_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline._core.system.num_cores", lambda: 4)
    space = {"x": 1, "steps": tune.grid_search([1, 40])}
    trainable = tune.with_resources(train, {"cpu": 1})
    short, long = make_tuner(tmp_path, trainable, space, scheduler=ResourceChangingScheduler()).fit()
    assert [short.error, long.error] == [None, None]
    frame = long.metrics_dataframe
    assert list(frame["step"]) == list(range(1, 41)), "no step is lost or made twice"
    assert frame["cpus"].iloc[-1] == 4
    assert frame["cpus"].is_monotonic_increasing
