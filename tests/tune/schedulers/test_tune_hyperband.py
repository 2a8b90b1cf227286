"""HyperBand: traces computed by hand, and that no order of anything keeps a trial waiting for ever."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played_search import Search, curve, negated, searches, shown, state, told_again

from paceline.tune.schedulers import HyperBandForBOHB, HyperBandScheduler
from paceline.tune.schedulers.hyperband import Bracket, shapes
from paceline.tune.schedulers.scheduler import Action, Pause, Resume, Stop
from paceline.tune.trial import Trial

Answers = list[tuple[str, str]]


def bohb(**options: Any) -> HyperBandForBOHB:
    """With 9 and a factor of 3 the first bracket has nine trials, compared at 1 and at 3."""
    return HyperBandForBOHB(**{"metric": "loss", "mode": "min", "max_t": 9, **options})


def add(scheduler: HyperBandScheduler, *trial_ids: str) -> None:
    for trial_id in trial_ids:
        assert scheduler.on_trial_add(Trial(trial_id, {})) in ((), [])


def tell(scheduler: HyperBandScheduler, trial_id: str, iteration: float, loss: float) -> Answers:
    answer = scheduler.on_trial_result(Trial(trial_id, {}), {"training_iteration": iteration, "loss": loss})
    return shown([answer])[0]


def whys(answer: Any) -> dict[str, str]:
    return {action.trial_id: action.why for action in answer if isinstance(action, Stop | Pause)}


def test_a_round_has_the_brackets_of_the_paper() -> None:
    assert [(shape.size, shape.times) for shape in shapes(81, 3)] == [
        (5, ()), (8, (27,)), (15, (9, 27)), (34, (3, 9, 27)), (81, (1, 3, 9, 27))]  # fmt: skip
    assert [(shape.size, shape.times) for shape in shapes(9, 3)] == [(3, ()), (5, (3,)), (9, (1, 3))]
    assert [(shape.size, shape.times) for shape in shapes(16, 4)] == [(3, ()), (6, (4,)), (16, (1, 4))]
    assert [(shape.size, shape.times) for shape in shapes(100, 4)] == [
        (4, ()), (8, (25,)), (22, (6, 25)), (64, (2, 6, 25))]  # fmt: skip
    assert [(shape.size, shape.times) for shape in shapes(1, 3)] == [(1, ())]


def test_brackets_are_filled_from_the_smallest_to_the_largest_and_again() -> None:
    scheduler = HyperBandScheduler(metric="loss", mode="min", max_t=9)
    add(scheduler, *(f"{number}" for number in range(18)))
    numbers = [scheduler._brackets[f"{number}"].number for number in range(18)]
    assert numbers == [0] * 3 + [1] * 5 + [2] * 9 + [3]
    assert [scheduler._brackets[f"{number}"].shape.times for number in (0, 3, 8, 17)] == [(), (3,), (1, 3), ()]


def test_nine_trials_become_three_and_then_one() -> None:
    scheduler = bohb()
    add(scheduler, *"abcdefgh")
    assert tell(scheduler, "a", 1, 5) == [("Pause", "a")]
    add(scheduler, "i")
    for trial, loss in zip("bcdefgh", [2, 3, 1, 6, 7, 8, 9], strict=True):
        assert tell(scheduler, trial, 1, loss) == [("Pause", trial)]
    # 1 d, 2 b, 2.5 i, 3 c, 5 a, 6 e, ...
    answer = scheduler.on_trial_result(Trial("i", {}), {"training_iteration": 1, "loss": 2.5})
    assert shown([answer]) == [[("Resume", "d"), ("Resume", "b"), *(("Stop", trial) for trial in "caefgh")]]
    assert whys(answer)["c"] == (
        "loss 3 at training_iteration 1 is not among the best 3 of the 9 trials of its bracket (needs 2.5)"
    )
    assert tell(scheduler, "i", 2, 0) == []
    assert tell(scheduler, "i", 3, 2.0) == [("Pause", "i")]
    assert tell(scheduler, "d", 3, 3.0) == [("Pause", "d")]
    answer = scheduler.on_trial_result(Trial("b", {}), {"training_iteration": 3, "loss": 2.1})
    assert shown([answer]) == [[("Resume", "i"), ("Stop", "b"), ("Stop", "d")]]
    assert whys(answer)["b"] == (
        "loss 2.1 at training_iteration 3 is not the best of the 3 trials of its bracket (needs 2)"
    )
    assert [tell(scheduler, "i", iteration, 9) for iteration in range(4, 9)] == [[]] * 5
    assert tell(scheduler, "i", 9, 9) == [("Stop", "i")]
    assert not scheduler._brackets


def test_where_more_is_better_the_most_go_on() -> None:
    scheduler = bohb(mode="max", reduction_factor=2, max_t=4)  # Four trials, compared at 1 and 2.
    add(scheduler, *"abcd")
    assert [tell(scheduler, t, 1, v) for t, v in zip("abc", [1, 3, 2], strict=True)] == [
        [("Pause", t)] for t in "abc"]  # fmt: skip
    assert tell(scheduler, "d", 1, 0) == [("Resume", "b"), ("Resume", "c"), ("Stop", "a"), ("Stop", "d")]
    assert tell(scheduler, "b", 2, 0.1) == [("Pause", "b")]
    assert tell(scheduler, "c", 2, 0.2) == [("Stop", "b")]  # c itself goes on without a pause.


def test_a_pause_says_whom_it_waits_for() -> None:
    scheduler = bohb()
    add(scheduler, *"ab")
    first = scheduler.on_trial_result(Trial("a", {}), {"training_iteration": 1, "loss": 5})
    assert whys(first)["a"] == "waits at training_iteration 1 for 1 other trial of its bracket"
    second = scheduler.on_trial_result(Trial("b", {}), {"training_iteration": 1, "loss": 5})
    assert whys(second)["b"] == "waits at training_iteration 1 for its bracket of 9 trials to fill up"


# Nothing is waited for in vain


def test_a_bracket_that_will_not_fill_up_is_halved_with_what_it_has() -> None:
    scheduler = bohb()
    add(scheduler, *"abc")
    assert [tell(scheduler, t, 1, v) for t, v in zip("abc", [3, 1, 2], strict=True)] == [
        [("Pause", t)] for t in "abc"]  # fmt: skip
    assert shown([scheduler.on_no_more_trials()]) == [[("Resume", "b"), ("Stop", "c"), ("Stop", "a")]]
    assert scheduler.on_no_more_trials() == ()


def test_a_bracket_is_closed_when_nothing_else_can_run_and_later_trials_begin_another() -> None:
    scheduler = bohb()
    add(scheduler, *"ab")
    assert [tell(scheduler, t, 1, v) for t, v in zip("ab", [3, 1], strict=True)] == [[("Pause", t)] for t in "ab"]
    assert shown([scheduler.on_idle()]) == [[("Resume", "b"), ("Stop", "a")]]
    add(scheduler, "c")
    assert scheduler._brackets["c"] is not scheduler._brackets["b"]


@pytest.mark.parametrize("fails", [True, False])
def test_a_trial_that_is_over_is_no_longer_waited_for(fails: bool) -> None:
    scheduler = bohb(max_t=3)  # Three trials, compared at 1.
    add(scheduler, *"abc")
    assert tell(scheduler, "a", 1, 2) == [("Pause", "a")]
    assert tell(scheduler, "b", 1, 1) == [("Pause", "b")]
    last = Trial("c", {})
    answer = scheduler.on_trial_error(last) if fails else scheduler.on_trial_complete(last, None)
    assert shown([answer]) == [[("Resume", "b"), ("Stop", "a")]]


def test_a_paused_trial_that_is_ended_by_somebody_else_leaves_its_bracket() -> None:
    scheduler = bohb(max_t=3)
    add(scheduler, *"abc")
    assert tell(scheduler, "a", 1, 1) == [("Pause", "a")]
    assert scheduler.on_trial_complete(Trial("a", {}), None) == []
    assert tell(scheduler, "b", 1, 3) == [("Pause", "b")]
    assert tell(scheduler, "c", 1, 2) == [("Stop", "b")]


def test_a_report_that_jumps_counts_at_every_time_it_has_passed() -> None:
    scheduler = bohb()
    add(scheduler, *"abcdefghi")
    assert tell(scheduler, "a", 5, 1) == [("Pause", "a")]  # Past both 1 and 3.
    for trial, loss in zip("bcdefgh", range(2, 9), strict=True):
        assert tell(scheduler, trial, 1, loss) == [("Pause", trial)]
    answer = tell(scheduler, "i", 2, 9)
    assert answer == [("Resume", "b"), ("Resume", "c"), *(("Stop", trial) for trial in "defghi")]
    assert tell(scheduler, "b", 3, 0.5) == [("Pause", "b")]
    assert tell(scheduler, "c", 3, 0.7) == [("Resume", "b"), ("Stop", "c"), ("Stop", "a")]


def test_nan_goes_on_only_where_there_is_nothing_else() -> None:
    scheduler = bohb()
    add(scheduler, *"abcdefghi")
    for trial in "abcdefgh":
        tell(scheduler, trial, 1, 1.0 if trial == "c" else math.nan)
    answer = tell(scheduler, "i", 1, math.nan)  # Three may go on, and only one is a number.
    assert answer[0] == ("Resume", "c")
    assert {what for what, _ in answer[1:]} == {"Stop"}
    other = bohb(max_t=3)
    add(other, *"abc")
    tell(other, "a", 1, math.nan)
    tell(other, "b", 1, math.nan)
    assert tell(other, "c", 1, math.nan) == [("Resume", "a"), ("Stop", "b"), ("Stop", "c")]


def test_of_equals_those_go_on_who_came_first() -> None:
    scheduler = bohb(max_t=3)
    add(scheduler, *"abc")
    tell(scheduler, "c", 1, 1)
    tell(scheduler, "a", 1, 1)
    assert tell(scheduler, "b", 1, 1) == [("Resume", "c"), ("Stop", "a"), ("Stop", "b")]


def test_the_oldest_bracket_is_run_first() -> None:
    scheduler = HyperBandScheduler(metric="loss", mode="min", max_t=9)
    add(scheduler, *"abcdef")
    waiting = [Trial(trial, {}) for trial in "fedcb"]
    assert scheduler.choose(waiting) == Trial("c", {})
    assert scheduler.choose([]) is None


def test_last_trials_go_on_if_they_are_to() -> None:
    scheduler = HyperBandScheduler(metric="loss", mode="min", max_t=9, stop_last_trials=False)
    add(scheduler, "a")
    assert [tell(scheduler, "a", iteration, 1) for iteration in range(1, 30)] == [[]] * 29


@pytest.mark.parametrize(
    ("options", "said"),
    [({"max_t": 0}, "max_t=0"), ({"reduction_factor": 0.5}, "reduction_factor=0.5"), ({"mode": 1}, "mode=1")],
)
def test_bad_arguments_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        bohb(**options)


# Properties

Watched = tuple[dict[str, float], set[str], int]


class Watching(HyperBandScheduler):
    """Writes down who was compared and who went on."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.halvings: list[Watched] = []

    def _halved(self, bracket: Bracket) -> Iterator[Action]:
        scores = {trial_id: arrival.score for trial_id, arrival in bracket.arrived.items()}
        rung = bracket.rung
        yield from super()._halved(bracket)
        if bracket.rung > rung:
            self.halvings.append((scores, {*bracket.living}, bracket.rung - rung))


def watching(**options: Any) -> Watching:
    return Watching(**{"metric": "loss", "mode": "min", "max_t": 9, **options})


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from([(9, 3), (4, 2), (8, 2), (16, 4), (7, 2.5)]), st.booleans())
def test_every_trial_ends_within_its_budget_however_trials_end_and_whatever_waits(
    data: st.DataObject, shape: tuple[int, float], largest_first: bool
) -> None:
    max_t, factor = shape
    kind = type("Either", (Watching,), {"largest_first": largest_first})
    scheduler = kind(metric="loss", mode="min", max_t=max_t, reduction_factor=factor)
    search = data.draw(searches(lambda: scheduler)).play()
    assert set(search.ended) == set(search.fates)
    assert not scheduler._brackets
    for trial_id, made in search.made.items():
        times = [report.get("training_iteration", 0) for report in search.fates[trial_id].reports[:made]]
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


@settings(max_examples=60, deadline=None)
@given(searches(watching), st.permutations([f"x{n}" for n in range(40)]))
def test_told_again_it_decides_the_same_whatever_trials_are_called(search: Search, names: list[str]) -> None:
    search.play()
    again = watching()
    assert told_again(again, search.told) == search.decisions
    assert state(again) == state(search.scheduler)
    called = {trial_id: names[int(trial_id)] for trial_id in search.fates}
    answers = told_again(watching(), search.told, lambda trial_id: called.get(trial_id, trial_id))
    assert shown(answers) == [
        [(what, called[trial_id]) for what, trial_id in answer] for answer in shown(search.decisions)
    ]


@settings(max_examples=60, deadline=None)
@given(searches(watching))
def test_the_most_of_negated_values_is_the_least_of_values(search: Search) -> None:
    search.play()
    assert shown(told_again(watching(mode="max"), negated(search.told))) == shown(search.decisions)


@pytest.mark.parametrize("slots", [1, 3, 200])
def test_a_whole_round_spends_what_the_paper_says(slots: int) -> None:
    fates = {f"{number:05d}": curve([number] * 81) for number in range(143)}
    search = Search(HyperBandScheduler(metric="loss", mode="min"), fates, slots=slots).play()
    # 5 to 81; 8 to 27, of which 2 to 81; 15 to 9, 5 to 27, 1 to 81; 34 to 3, 11, 3, 1; 81 to 1, 27, 9, 3, 1.
    spent = 5 * 81 + (6 * 27 + 2 * 81) + (10 * 9 + 4 * 27 + 81)
    spent += (23 * 3 + 8 * 9 + 2 * 27 + 81) + (54 * 1 + 18 * 3 + 6 * 9 + 2 * 27 + 81)
    assert sum(search.made.values()) == spent
    assert not any(isinstance(action, Resume) for told in search.told[-1:] for action in told.answer)
