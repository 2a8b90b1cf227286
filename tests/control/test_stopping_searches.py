"""`paceline stop` of a search, and of one of its trials."""

import contextlib
import time
from pathlib import Path

from live_runs import Live

from paceline import tune
from paceline._control.requests import ProfileRequest, StacksRequest, StopRequest, find_holder, send_request
from paceline._storage.run_location import RunLocation
from paceline.tune import ResultGrid
from paceline.tune.driver.events import TrialEnded
from paceline.tune.driver.search_storage import load_past_events


def trial(config):
    begun = tune.get_checkpoint()
    n = begun.to_dict()["n"] if begun else 0
    at = Path(config["at"])
    while not (at / "go").exists():
        n += 1
        tune.report({"n": n}, checkpoint=tune.Checkpoint.from_dict({"n": n}))
        (at / f"reported_{config['x']}").touch()
        time.sleep(0.01)


@contextlib.contextmanager
def running_search(tmp_path):
    """A search of two trials that both have reported; they return afterwards."""
    for name in ("go", "reported_1", "reported_2"):
        (tmp_path / name).unlink(missing_ok=True)
    tuner = tune.Tuner(
        trial,
        param_space={"x": tune.grid_search([1, 2]), "at": str(tmp_path)},
        tune_config=tune.TuneConfig(metric="n", mode="max"),
        run_config=tune.RunConfig(name="search", storage_path=str(tmp_path)),
    )
    live = Live(tuner.fit, RunLocation.from_path(str(tmp_path / "search")))
    try:
        live.until(lambda: all((tmp_path / f"reported_{x}").exists() for x in (1, 2)))
        yield live
    finally:
        (tmp_path / "go").touch()
        live.ended()


def stopped_trials(live):
    events = [event for event in load_past_events(live.home) if isinstance(event, TrialEnded)]
    return [(event.trial[-5:], event.why) for event in events if event.ending == "stopped"]


def test_a_search_is_stopped_and_continued_and_then_its_trials_one_by_one(tmp_path):
    with running_search(tmp_path) as live:
        for wrong in (StacksRequest(), ProfileRequest(seconds=1.0)):
            refused = live.ask(wrong)
            assert refused.state == "refused"
            assert "trial_00000" in refused.text
        answer = live.ask(StopRequest())
        assert (answer.state, answer.ending) == ("done", "interrupted"), answer
        assert answer.text == "search search has stopped, 0 of 2 trials over; run its script again to continue"
        assert find_holder(live.home) is None
    assert live.interrupt is not None
    assert live.outcome.status == ResultGrid.from_path(live.path).status == "stopped"
    reached = {result.config["x"]: result.metrics["n"] for result in live.outcome}

    with running_search(tmp_path) as live:
        one, other = (RunLocation.from_path(str(tmp_path / "search" / f"trial_0000{number}")) for number in (0, 1))
        assert send_request(one, StacksRequest(), 60.0).ok
        assert send_request(one, StopRequest(), 60.0).ok
        live.until(lambda: stopped_trials(live) == [("00000", "stopped by a person")])
        assert find_holder(live.home) is not None, "the other trial goes on"
        assert send_request(other, StopRequest(now=True), 60.0).ok, "at once, too"
    assert (len(live.outcome), live.outcome.errors) == (2, [])
    for result in live.outcome:
        assert result.metrics["n"] > reached[result.config["x"]], "it went on where it was"
        assert result.metrics["training_iteration"] == result.metrics["n"], "each number once"
