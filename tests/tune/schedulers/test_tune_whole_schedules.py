"""Schedulers that pause, in searches that really run."""

from pathlib import Path
from typing import Any

from paceline import tune
from paceline.tune.schedulers import HyperBandForBOHB
from paceline.tune.search.limiter import ConcurrencyLimiter
from paceline.tune.search.searcher import Searcher


class Given(Searcher):
    def set_search_properties(self, *properties: Any, **spec: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {"x": [5, 3, 4][int(trial_id)]}


def train_func(config: dict[str, Any]) -> None:
    begun = tune.get_checkpoint()
    for step in range(begun.to_dict()["step"] + 1 if begun else 0, 20):
        tune.report({"loss": config["x"] - step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))


def test_a_bracket_that_its_searcher_does_not_fill_holds_up_nothing(tmp_path: Path) -> None:
    results = tune.Tuner(
        train_func,
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=3,
            search_alg=ConcurrencyLimiter(Given(), max_concurrent=2),
            scheduler=HyperBandForBOHB(max_t=3),  # Three trials, compared at 1; the searcher makes two.
        ),
        run_config=tune.RunConfig(name="search", storage_path=str(tmp_path)),
    ).fit()
    made = {result.config["x"]: result.metrics["training_iteration"] for result in results}
    assert made == {5: 1, 3: 3, 4: 3}  # The best of two goes on; the third is in a bracket of its own.
    idle = [line for line in (tmp_path / "search" / "journal.jsonl").read_text().splitlines() if "SearchIdle" in line]
    assert len(idle) == 1
    assert '"do":"stop","trial":"00000"' in idle[0]
