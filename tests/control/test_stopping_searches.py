"""`paceline stop` of a search, and of one of its trials."""

import time
from pathlib import Path
from typing import Any

from live_runs import Live

from paceline import tune
from paceline._control.requests import Profile, Stacks, Stop, asked, holder_of
from paceline._storage.home import Home
from paceline.tune.drive.book import past_of
from paceline.tune.drive.events import TrialEnded


def trial(config: dict[str, Any]) -> None:
    begun = tune.get_checkpoint()
    n = begun.to_dict()["n"] if begun else 0
    at = Path(config["at"])
    while not (at / "go").exists():
        n += 1
        tune.report({"n": n}, checkpoint=tune.Checkpoint.from_dict({"n": n}))
        (at / f"reported_{config['x']}").touch()
        time.sleep(0.01)


def search(tmp_path: Path) -> Live:
    tuner = tune.Tuner(
        trial,
        param_space={"x": tune.grid_search([1, 2]), "at": str(tmp_path)},
        tune_config=tune.TuneConfig(metric="n", mode="max"),
        run_config=tune.RunConfig(name="search", storage_path=str(tmp_path)),
    )
    return Live(tuner.fit, Home.of_path(str(tmp_path / "search")))


def until_both_report(live: Live, tmp_path: Path) -> None:
    live.until(lambda: all((tmp_path / f"reported_{x}").exists() for x in (1, 2)))


def test_a_search_is_stopped_and_continued(tmp_path: Path) -> None:
    live = search(tmp_path)
    try:
        until_both_report(live, tmp_path)
        for wrong in (Stacks(), Profile(seconds=1.0)):
            refused = asked(live.home, wrong, 20.0)
            assert refused.state == "refused"
            assert "trial_00000" in refused.text
        answer = asked(live.home, Stop(), 20.0)
        assert (answer.state, answer.ending) == ("done", "interrupted"), answer
        assert answer.text == "search search has stopped, 0 of 2 trials over; its script continues it"
        assert holder_of(live.home) is None
    finally:
        (tmp_path / "go").touch()
        stopped = live.ended()
    reached = {result.config["x"]: result.metrics["n"] for result in stopped}
    (tmp_path / "go").unlink()
    for x in (1, 2):
        (tmp_path / f"reported_{x}").unlink()
    live = search(tmp_path)
    try:
        until_both_report(live, tmp_path)
    finally:
        (tmp_path / "go").touch()
        ended = live.ended()
    for result in ended:
        assert result.metrics["n"] > reached[result.config["x"]], "it went on where it was"
        assert result.metrics["training_iteration"] == result.metrics["n"], "each number once"


def test_a_trial_is_stopped_and_the_others_go_on(tmp_path: Path) -> None:
    live = search(tmp_path)
    try:
        until_both_report(live, tmp_path)
        one = Home.of_path(str(tmp_path / "search" / "trial_00000"))
        assert asked(one, Stacks(), 20.0).ok
        assert asked(one, Stop(), 20.0).ok
        live.until(lambda: any(isinstance(event, TrialEnded) for event in past_of(live.home)))
        ended = next(event for event in past_of(live.home) if isinstance(event, TrialEnded))
        assert (ended.trial, ended.ending, ended.why) == ("00000", "stopped", "stopped by a person")
        assert holder_of(live.home) is not None
        other = Home.of_path(str(tmp_path / "search" / "trial_00001"))
        assert asked(other, Stop(now=True), 20.0).ok, "at once, too"
    finally:
        (tmp_path / "go").touch()
        results = live.ended()
    assert len(results) == 2
    assert not results.errors
