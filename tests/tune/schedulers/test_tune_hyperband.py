"""HyperBand: traces computed by hand, and that no order of anything keeps a trial waiting for ever."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played_search import Search, add, curve, searches, tell, without_reasons
from tuners import make_tuner

from paceline import tune
from paceline.tune.schedulers import HyperBandForBOHB, HyperBandScheduler
from paceline.tune.schedulers.hyperband import compute_bracket_shapes
from paceline.tune.schedulers.scheduler import Pause, Resume, Stop
from paceline.tune.search import ConcurrencyLimiter, Searcher
from paceline.tune.trial import Trial


def bohb(**options):
    """With 9 and a factor of 3 the first bracket has nine trials, compared at 1 and at 3."""
    return HyperBandForBOHB(**{"metric": "loss", "mode": "min", "max_t": 9, **options})


def whys(answer):
    return {action.trial_id: action.why for action in answer if isinstance(action, Stop | Pause)}


def test_a_round_has_the_brackets_of_the_paper_filled_from_the_smallest_to_the_largest_and_again():
    for arguments, shapes in {
        (81, 3): [(5, ()), (8, (27,)), (15, (9, 27)), (34, (3, 9, 27)), (81, (1, 3, 9, 27))],
        (9, 3): [(3, ()), (5, (3,)), (9, (1, 3))],
        (16, 4): [(3, ()), (6, (4,)), (16, (1, 4))],
        (100, 4): [(4, ()), (8, (25,)), (22, (6, 25)), (64, (2, 6, 25))],
        (1, 3): [(1, ())],
    }.items():
        assert [(shape.size, shape.times) for shape in compute_bracket_shapes(*arguments)] == shapes
    scheduler = HyperBandScheduler(metric="loss", mode="min", max_t=9)
    add(scheduler, *(f"{number}" for number in range(18)))
    numbers = [scheduler._brackets[f"{number}"].number for number in range(18)]
    assert numbers == [0] * 3 + [1] * 5 + [2] * 9 + [3]
    assert [scheduler._brackets[f"{number}"].shape.times for number in (0, 3, 8, 17)] == [(), (3,), (1, 3), ()]


def test_nine_trials_become_three_and_then_one():
    scheduler = bohb()
    add(scheduler, *"abcdefgh")
    assert tell(scheduler, "a", 1, 5) == [("Pause", "a")]
    add(scheduler, "i")
    for trial, loss in zip("bcdefgh", [2, 3, 1, 6, 7, 8, 9], strict=True):
        assert tell(scheduler, trial, 1, loss) == [("Pause", trial)]
    # 1 d, 2 b, 2.5 i, 3 c, 5 a, 6 e, ...
    answer = scheduler.on_trial_result(Trial("i", {}), {"training_iteration": 1, "loss": 2.5})
    assert without_reasons([answer]) == [[("Resume", "d"), ("Resume", "b"), *(("Stop", trial) for trial in "caefgh")]]
    assert whys(answer)["c"] == (
        "loss 3 at training_iteration 1 is not among the best 3 of the 9 trials of its bracket (needs 2.5)"
    )
    assert tell(scheduler, "i", 2, 0) == []
    assert tell(scheduler, "i", 3, 2.0) == [("Pause", "i")]
    assert tell(scheduler, "d", 3, 3.0) == [("Pause", "d")]
    answer = scheduler.on_trial_result(Trial("b", {}), {"training_iteration": 3, "loss": 2.1})
    assert without_reasons([answer]) == [[("Resume", "i"), ("Stop", "b"), ("Stop", "d")]]
    assert whys(answer)["b"] == (
        "loss 2.1 at training_iteration 3 is not the best of the 3 trials of its bracket (needs 2)"
    )
    assert [tell(scheduler, "i", iteration, 9) for iteration in range(4, 9)] == [[]] * 5
    assert tell(scheduler, "i", 9, 9) == [("Stop", "i")]
    assert not scheduler._brackets


def test_a_pause_names_what_it_waits_for_and_equal_trials_continue_in_order():
    scheduler = bohb()
    add(scheduler, *"ab")
    first = scheduler.on_trial_result(Trial("a", {}), {"training_iteration": 1, "loss": 5})
    assert whys(first)["a"] == "waits at training_iteration 1 for 1 other trial of its bracket"
    second = scheduler.on_trial_result(Trial("b", {}), {"training_iteration": 1, "loss": 5})
    assert whys(second)["b"] == "waits at training_iteration 1 for its bracket of 9 trials to fill up"
    scheduler = bohb(max_t=3)
    add(scheduler, *"abc")
    tell(scheduler, "c", 1, 1)
    tell(scheduler, "a", 1, 1)
    assert tell(scheduler, "b", 1, 1) == [("Resume", "c"), ("Stop", "a"), ("Stop", "b")]


@pytest.mark.parametrize("fails", [True, False])
def test_a_trial_that_is_over_is_no_longer_waited_for(fails):
    scheduler = bohb(max_t=3)  # Three trials, compared at 1.
    add(scheduler, *"abc")
    assert tell(scheduler, "a", 1, 2) == [("Pause", "a")]
    assert tell(scheduler, "b", 1, 1) == [("Pause", "b")]
    last = Trial("c", {})
    answer = scheduler.on_trial_error(last) if fails else scheduler.on_trial_complete(last, None)
    assert without_reasons([answer]) == [[("Resume", "b"), ("Stop", "a")]]
    scheduler = bohb(max_t=3)
    add(scheduler, *"abc")
    assert tell(scheduler, "a", 1, 1) == [("Pause", "a")]
    paused = Trial("a", {})
    assert (scheduler.on_trial_error(paused) if fails else scheduler.on_trial_complete(paused, None)) == []
    assert tell(scheduler, "b", 1, 3) == [("Pause", "b")]
    assert tell(scheduler, "c", 1, 2) == [("Stop", "b")]


def test_nan_is_promoted_only_if_nothing_else_is_there():
    scheduler = bohb()
    add(scheduler, *"abcdefghi")
    for trial in "abcdefgh":
        tell(scheduler, trial, 1, 1.0 if trial == "c" else math.nan)
    # Three may go on, and only one is a number.
    assert tell(scheduler, "i", 1, math.nan) == [("Resume", "c"), *(("Stop", trial) for trial in "abdefghi")]


def test_a_report_that_jumps_counts_at_every_time_it_has_passed():
    scheduler = bohb()
    add(scheduler, *"abcdefghi")
    assert tell(scheduler, "a", 5, 1) == [("Pause", "a")]  # Past both 1 and 3.
    for trial, loss in zip("bcdefgh", range(2, 9), strict=True):
        assert tell(scheduler, trial, 1, loss) == [("Pause", trial)]
    answer = tell(scheduler, "i", 2, 9)
    assert answer == [("Resume", "b"), ("Resume", "c"), *(("Stop", trial) for trial in "defghi")]
    assert tell(scheduler, "b", 3, 0.5) == [("Pause", "b")]
    assert tell(scheduler, "c", 3, 0.7) == [("Resume", "b"), ("Stop", "c"), ("Stop", "a")]


def test_last_trials_may_continue_and_the_oldest_bracket_runs_first():
    scheduler = HyperBandScheduler(metric="loss", mode="min", max_t=9, stop_last_trials=False)
    add(scheduler, *"abcdef")
    assert [tell(scheduler, "a", iteration, 1) for iteration in range(1, 30)] == [[]] * 29
    waiting = [Trial(trial, {}) for trial in "fedcb"]
    assert scheduler.choose(waiting) == Trial("c", {})
    assert scheduler.choose([]) is None


class Watching(HyperBandScheduler):
    """Writes down who was compared and who went on."""

    def __init__(self, **options):
        super().__init__(**options)
        self.halvings = []

    def _halve_bracket(self, bracket):
        scores = {trial_id: arrival.score for trial_id, arrival in bracket.arrivals.items()}
        rung = bracket.rung
        yield from super()._halve_bracket(bracket)
        if bracket.rung > rung:
            self.halvings.append((scores, {*bracket.live_trials}, bracket.rung - rung))


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([(9, 3), (4, 2), (8, 2), (16, 4), (7, 2.5)]), st.booleans())
def test_every_trial_ends_within_its_budget_however_trials_end_and_whatever_waits(data, shape, largest_first):
    max_t, factor = shape
    kind = type("Either", (Watching,), {"largest_first": largest_first})
    scheduler = kind(metric="loss", mode="min", max_t=max_t, reduction_factor=factor)
    search = data.draw(searches(lambda: scheduler))
    assert set(search.ended) == set(search.fates)
    assert not scheduler._brackets
    for trial_id, count in search.num_reports.items():
        times = [report.get("training_iteration", 0) for report in search.fates[trial_id].reports[:count]]
        assert all(time < max_t for time in times[:-1])
    for scores, went_on, halvings in scheduler.halvings:
        count = len(scores)
        for _ in range(halvings):
            count = max(1, math.floor(count / factor))
        numbers = sum(score > -math.inf for score in scores.values())
        assert len(went_on) == min(count, numbers or count)
        assert min(scores[trial_id] for trial_id in went_on) >= max(
            (score for trial_id, score in scores.items() if trial_id not in went_on), default=-math.inf
        )


@pytest.mark.parametrize("slots", [1, 3, 200])
def test_a_whole_round_spends_what_the_paper_says(slots):
    fates = {f"{number:05d}": curve([number] * 81) for number in range(143)}
    search = Search(HyperBandScheduler(metric="loss", mode="min"), fates, slots=slots).play()
    # 5 to 81; 8 to 27, of which 2 to 81; 15 to 9, 5 to 27, 1 to 81; 34 to 3, 11, 3, 1; 81 to 1, 27, 9, 3, 1.
    spent = 5 * 81 + (6 * 27 + 2 * 81) + (10 * 9 + 4 * 27 + 81)
    spent += (23 * 3 + 8 * 9 + 2 * 27 + 81) + (54 * 1 + 18 * 3 + 6 * 9 + 2 * 27 + 81)
    assert sum(search.num_reports.values()) == spent
    assert not any(isinstance(action, Resume) for action in search.decisions[-1])


class GivenSearcher(Searcher):
    def set_search_properties(self, *properties, **spec):
        return True

    def suggest(self, trial_id):
        return {"x": [5, 3, 4][int(trial_id[-5:])]}


def train_func(config):
    begun = tune.get_checkpoint()
    for step in range(begun.to_dict()["step"] + 1 if begun else 0, 20):
        tune.report({"loss": config["x"] - step}, checkpoint=tune.Checkpoint.from_dict({"step": step}))


def test_in_a_real_search_a_bracket_that_its_searcher_does_not_fill_holds_up_nothing(tmp_path):
    limited = ConcurrencyLimiter(GivenSearcher(), max_concurrent=2)
    scheduler = HyperBandForBOHB(max_t=3)  # Three trials, compared at 1; the searcher makes two.
    about = {"metric": "loss", "mode": "min", "num_samples": 3, "search_alg": limited, "scheduler": scheduler}
    results = make_tuner(tmp_path, train_func, **about).fit()
    iterations = {result.config["x"]: result.metrics["training_iteration"] for result in results}
    assert iterations == {5: 1, 3: 3, 4: 3}  # The best of two goes on; the third is in a bracket of its own.
    (idle,) = (line for line in (tmp_path / "search/journal.jsonl").read_text().splitlines() if "search_idle" in line)
    assert re.search(r'"do":"stop","trial":"\w{5}_00000"', idle)
