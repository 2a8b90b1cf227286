"""Running means are counted as if every trial were looked at."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.tune.schedulers import means as module
from paceline.tune.schedulers.means import Means

reports = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from([0.5, 1, 1, 2]), st.integers(-4, 4)), max_size=80
)


@settings(max_examples=150, deadline=None)
@given(reports, st.lists(st.tuples(st.floats(0, 20) | st.integers(0, 20), st.floats(-4, 4)), min_size=1, max_size=20))
def test_means_are_counted_as_if_every_trial_were_looked_at(
    told: list[tuple[str, float, int]], questions: list[tuple[float, float]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LEAST_BLOCK", 3)
        means = Means()
        curves: dict[str, list[tuple[float, float]]] = {}
        for trial_id, later, score in told:
            curve = curves.setdefault(trial_id, [])
            time = (curve[-1][0] if curve else 0) + later
            curve.append((time, score))
            means.extend(trial_id, time, score)
    assert len(means.began.blocks) >= means.began.count / 10
    for time, score in questions:
        held = [
            sum(s for t, s in curve if t <= time) / sum(t <= time for t, _ in curve)
            for curve in curves.values()
            if curve[0][0] <= time <= curve[-1][0]
        ]
        assert means.better(time, score) == (len(held), sum(mean > score for mean in held))


def test_a_trial_that_begins_anew_is_another_one() -> None:
    means = Means()
    for time, score in ((1, 5.0), (2, 3.0), (3, 1.0)):
        means.extend("a", time, score)
    means.forget("a")
    means.extend("a", 1, 9.0)
    assert means.better(1, 0.0) == (2, 2)  # What it had been at 1 and at 2 stays known.
    assert means.better(2, 3.5) == (1, 1)
    assert means.better(3, 0.0) == (0, 0)
    means.forget("b")
