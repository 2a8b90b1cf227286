"""Population based training with real trials: clones begin from the very checkpoints of their donors."""

import json

import pytest

from paceline import tune
from paceline.train import Checkpoint
from paceline.tune.schedulers import PB2, PopulationBasedTraining, PopulationBasedTrainingReplay


def climb(config):
    """The score grows by `rate` at each step; a state knows all rates that made it."""
    last = tune.get_checkpoint()
    rates = last.to_dict()["rates"] if last is not None else []
    while len(rates) < 6:
        rates = [*rates, config["rate"]]
        tune.report({"score": sum(rates), "rates": rates}, checkpoint=Checkpoint.from_dict({"rates": rates}))


def searched(tmp_path, scheduler, **options):
    tuner = tune.Tuner(
        climb,
        param_space=options.pop("space", {"rate": tune.grid_search([1.0, 4.0])}),
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=scheduler, seed=1, **options),
        run_config=tune.RunConfig(name="search", storage_path=str(tmp_path), checkpoint_config={"num_to_keep": 1}),
    )
    return tuner.fit()


def population(**options):
    chosen = {"perturbation_interval": 2, "hyperparam_mutations": {"rate": tune.uniform(0.0, 10.0)}, **options}
    return PopulationBasedTraining("training_iteration", **chosen)


def test_a_policy_that_was_found_is_replayed_by_one_trial(tmp_path):
    scheduler = population(synch=True)  # Else one trial may end before the other can be compared with it.
    results = searched(tmp_path, scheduler, max_concurrent_trials=2)
    assert not results.errors
    assert {len(result.metrics["rates"]) for result in results} == {6}, "a step was lost, or made twice"
    lines = [json.loads(line) for line in (tmp_path / "search" / "pbt_global.txt").read_text().splitlines()]
    (clone,) = (result for result in results if result.metrics["trial_id"] == lines[-1][0])  # One that was cloned.
    policy = scheduler.policy_of(clone.metrics["trial_id"])
    logged = tmp_path / "search" / f"pbt_policy_{clone.metrics['trial_id']}.txt"
    assert json.loads(logged.read_text().splitlines()[-1]) in lines
    assert all(len(line) == 6 for line in lines)
    replay = PopulationBasedTrainingReplay(policy_file=logged)
    assert replay.policy == policy
    again = searched(tmp_path / "again", replay, space={}, num_samples=1)
    assert again[0].metrics["rates"] == pytest.approx(clone.metrics["rates"])


@pytest.mark.slow
def test_bandits_run_as_well_and_what_a_configuration_lacks_is_drawn_by_the_scheduler(tmp_path):
    scheduler = PB2("training_iteration", perturbation_interval=2, hyperparam_bounds={"rate": [0.0, 10.0]})
    results = searched(tmp_path, scheduler, space={}, num_samples=3)
    assert not results.errors
    assert all(len(result.metrics["rates"]) == 6 for result in results)
    drawn = {result.metrics_dataframe["rates"][0][0] for result in results}
    assert len(drawn) == 3
    assert all(0.0 <= rate <= 10.0 for rate in drawn)
