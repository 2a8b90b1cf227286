"""Whole searches by Optuna: what trials report comes to it, and what it suggests is run and plotted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

from optuna.trial import TrialState

from paceline import tune
from paceline.tune.schedulers import ASHAScheduler
from paceline.tune.search import ConcurrencyLimiter
from paceline.tune.search.optuna import OptunaSearch


def trained(config: dict[str, Any]) -> None:
    for step in range(1, 5):
        tune.report({"loss": abs(config["x"]) + 1 / step, "size": config["act"](config["x"])})


SPACE = {"x": tune.uniform(-5, 5), "act": tune.choice([abs, float])}


def tuner(path: Path, search: Any, num_samples: int, **config: Any) -> tune.Tuner:
    return tune.Tuner(
        trained,
        param_space=SPACE,
        tune_config=tune.TuneConfig(num_samples=num_samples, search_alg=search, **config),
        run_config=tune.RunConfig(name="search", storage_path=str(path)),
    )


def test_trials_that_a_scheduler_stops_are_pruned_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    search = OptunaSearch(seed=1)
    scheduler = ASHAScheduler(max_t=4, grace_period=1, reduction_factor=2)
    limited = ConcurrencyLimiter(search, max_concurrent=1)
    results = tuner(tmp_path, limited, 8, metric="loss", mode="min", scheduler=scheduler).fit()
    told = {trial.user_attrs["trial_id"]: trial for trial in search.study.trials}
    assert len(results) == len(told) == 8
    states = [trial.state for trial in told.values()]
    assert {*states} == {TrialState.PRUNED, TrialState.COMPLETE}
    for trial in told.values():
        assert (len(trial.intermediate_values) == 4) == (trial.state is TrialState.COMPLETE)
    assert results.get_best_result().config["x"] == search.study.best_params["x"]
    figure = results.plot()
    figure.savefig(tmp_path / "search.png")
    drawn = {shown.get_gid(): len(shown.get_segments()) for shown in figure.axes[0].collections}
    assert drawn["stopped"] == states.count(TrialState.PRUNED)
    assert sum(drawn.values()) == 8


def test_a_continued_search_is_the_whole_one(tmp_path: Path) -> None:
    def fitted(path: Path, num_samples: int) -> list[Any]:
        search = OptunaSearch(metric=["loss", "size"], mode=["min", "max"], sampler="nsgaii", seed=3)
        results = tuner(path, ConcurrencyLimiter(search, max_concurrent=1), num_samples).fit()
        return [result.config for result in results]

    whole = fitted(tmp_path / "whole", 5)
    assert fitted(tmp_path / "parts", 2) == whole[:2]
    assert fitted(tmp_path / "parts", 5) == whole
    assert {config["act"] for config in whole} == {abs, float}


@pytest.mark.parametrize(
    ("package", "code"),
    [
        ("optuna", "from paceline.tune.search.optuna import OptunaSearch"),
        ("optuna", "importances([({'x': x}, x) for x in range(20)])"),
        ("matplotlib", "plot([])"),
    ],
)
def test_a_missing_package_names_the_extra(package: str, code: str, run_script: Any) -> None:
    ended = run_script(
        f"import sys\nsys.modules[{package!r}] = None\n"
        "from paceline.tune.importance import importances\nfrom paceline.tune.plots import plot\n"
        f"try:\n    {code}\nexcept ImportError as error:\n    print(error)\n"
    )
    assert f"the package {package}" in ended.stdout, ended.stderr
    assert 'hint: pip install "paceline[tune]"' in ended.stdout
