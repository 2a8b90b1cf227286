"""Population based training with real trials: clones begin from the very checkpoints of their donors."""

from pathlib import Path
from typing import Any

import pytest

from paceline import tune
from paceline.train import Checkpoint
from paceline.tune.schedulers import PB2, PopulationBasedTraining, PopulationBasedTrainingReplay


def climb(config: dict[str, Any]) -> None:
    """The score grows by `rate` at each step; a state knows all rates that made it."""
    last = tune.get_checkpoint()
    rates = last.to_dict()["rates"] if last is not None else []
    while len(rates) < 8:
        rates = [*rates, config["rate"]]
        tune.report({"score": sum(rates), "rates": rates}, checkpoint=Checkpoint.from_dict({"rates": rates}))


def searched(tmp_path: Path, scheduler: Any, **about: Any) -> Any:
    tuner = tune.Tuner(
        climb,
        param_space={"rate": tune.grid_search([1.0, 2.0, 3.0, 4.0])} if "space" not in about else about.pop("space"),
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=scheduler, seed=1, **about),
        run_config=tune.RunConfig(
            name="search", storage_path=str(tmp_path), checkpoint_config=tune.CheckpointConfig(num_to_keep=1)
        ),
    )
    return tuner.fit()


def population(**about: Any) -> PopulationBasedTraining:
    chosen: dict[str, Any] = {
        "time_attr": "training_iteration",
        "perturbation_interval": 2,
        "hyperparam_mutations": {"rate": tune.uniform(0.0, 10.0)},
        **about,
    }
    return PopulationBasedTraining(**chosen)


@pytest.mark.parametrize("about", [{}, {"synch": True}], ids=["as_they_come", "synch"])
def test_a_population_in_less_room_than_it_needs_is_cloned_and_loses_no_step(
    tmp_path: Path, about: dict[str, Any]
) -> None:
    scheduler = population(**about)
    results = searched(tmp_path, scheduler, max_concurrent_trials=2)
    assert not results.errors
    assert len(results) == 4
    clones = sorted(path.name for path in (tmp_path / "search").glob("trial_*-*"))
    assert clones, "nobody was cloned"
    for result in results:
        rates = result.metrics["rates"]
        assert len(rates) == 8, "a step was lost, or made twice"
        assert result.metrics["score"] == pytest.approx(sum(rates))
        assert result.metrics["training_iteration"] == 8
        used = scheduler.policy_of(result.metrics["trial_id"])
        expected = [[config["rate"] for at, config in used if at <= step][-1] for step in range(8)]
        assert rates == pytest.approx(expected), "another configuration trained it than the scheduler knows of"


def test_a_policy_that_was_found_is_replayed_by_one_trial(tmp_path: Path) -> None:
    scheduler = population()
    best = searched(tmp_path, scheduler).get_best_result()
    policy = scheduler.policy_of(best.metrics["trial_id"])
    again = searched(tmp_path / "again", PopulationBasedTrainingReplay(policy), space={}, num_samples=1)
    assert again[0].metrics["rates"] == pytest.approx(best.metrics["rates"])


def test_bandits_run_as_well(tmp_path: Path) -> None:
    scheduler = PB2("training_iteration", perturbation_interval=2, hyperparam_bounds={"rate": [0.0, 10.0]})
    results = searched(tmp_path, scheduler)
    assert not results.errors
    assert all(len(result.metrics["rates"]) == 8 for result in results)


def test_what_a_configuration_lacks_is_drawn_by_the_scheduler(tmp_path: Path) -> None:
    results = searched(tmp_path, population(perturbation_interval=100), space={}, num_samples=3)
    rates = {result.metrics["rates"][0] for result in results}
    assert len(rates) == 3
    assert all(0.0 <= rate <= 10.0 for rate in rates)


@pytest.mark.parametrize(
    "policy", [[], [(1, {})], [(0, {}), (0, {})], [(0, {}), (3,)], [(0, 1)]], ids=["none", "late", "twice", "no", "bad"]
)
def test_a_policy_that_is_none_is_refused(policy: Any) -> None:
    with pytest.raises(ValueError, match="policy"):
        PopulationBasedTrainingReplay(policy)
