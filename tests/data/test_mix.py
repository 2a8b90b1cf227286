"""Mixed datasets: the order of the rows, what is read of them, and where they end."""

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import READ, BackwardsExecutor, all_rows, cut, numbers, reading, rows, slice_at

from paceline.data import MixStoppingCondition
from paceline.data.block import Block
from paceline.data.exec.exchange import resolve_barrier
from paceline.data.exec.pipeline import InlineExecutor
from paceline.data.planning.barriers import Mix
from paceline.data.planning.mix_pattern import parse_ratio
from paceline.data.planning.plan_queries import known_num_rows

SHORTEST, LONGEST = MixStoppingCondition
SIDES = st.tuples(st.integers(0, 40), st.integers(1, 5), st.lists(st.integers(0, 40), max_size=4), st.booleans())


def merge_by_time(counts, ratio, stop):
    """Row j of a dataset with n rows in a window is due at (j + 1/2) / n."""
    due = {(Fraction(2 * j + 1, 2 * ratio[i]), i): j for i, count in enumerate(counts) for j in range(count)}
    ends = [(Fraction(2 * count + 1, 2 * ratio[i]), i) for i, count in enumerate(counts)]
    return [(at[1], due[at]) for at in sorted(due) if stop is LONGEST or at < min(ends)]


@given(st.lists(SIDES, min_size=1, max_size=4), st.sampled_from(MixStoppingCondition))
@settings(max_examples=150, deadline=None)
def test_rows_alternate_by_weight_whatever_the_units(sides, stop):
    plans = []
    for number, (count, _, cuts, counted) in enumerate(sides):
        block = Block({"from": np.full(count, number), "id": np.arange(count)})
        plans.append(reading(slice_at(block, cuts), counted=counted))
    ratio = parse_ratio([weight for _, weight, *_ in sides])
    plan = Mix(tuple(plans), ratio, stop)
    wanted = merge_by_time([count for count, *_ in sides], ratio, stop)
    assert [(row["from"], row["id"]) for row in rows(plan, executor=BackwardsExecutor())] == wanted
    if all(counted for *_, counted in sides):
        assert known_num_rows(plan) == len(wanted)
    units = resolve_barrier(plan, 0, InlineExecutor())
    assert sum(unit.num_rows for unit in units) == len(wanted)
    for begin in range(0, len(wanted), sum(ratio)):
        window = [number for number, _ in wanted[begin : begin + sum(ratio)]]
        if stop is SHORTEST and len(window) == sum(ratio):
            assert tuple(np.bincount(window, minlength=len(ratio))) == ratio


def test_weights_become_the_smallest_exact_window():
    assert parse_ratio([0.7, 0.2, 0.1]) == (7, 2, 1)
    assert parse_ratio([1 / 3, 2 / 3]) == (1, 2)
    assert parse_ratio([300, 100]) == (3, 1)
    assert parse_ratio([1e-12, 1]) == (1, 1 << 20)
    assert parse_ratio([0.123456789, 0.876543211]) == (129454, 919122)


def test_nothing_is_read_before_it_is_needed_and_a_mix_resumes():
    left, right = numbers([50, 50], [50], [50]), numbers([40], [40])
    mixed = left.mix(right.map_batches(lambda batch: {"id": -batch["id"] - 1}, batch_size=None), weights=[3, 1])
    READ.clear()
    direct = left.mix(right, weights=[3, 1])
    assert direct.count() == 280
    assert not READ
    assert direct.take(4) == [{"id": each} for each in (0, 1, 0, 2)]
    assert sum(num_rows for *_, num_rows in READ) < 280
    iterator = mixed.iterator()
    batches = iter(iterator.iter_batches(batch_size=33))
    head = [next(batches)["id"] for _ in range(4)]
    later = mixed.iterator()
    later.set_state(iterator.get_state())
    tail = [batch["id"] for batch in later.iter_batches(batch_size=33)]
    np.testing.assert_array_equal(np.concatenate([*head, *tail]), all_rows(mixed).to_numpy()["id"])


def test_an_exhausted_dataset_costs_nothing_and_few_files_are_not_read_often():
    tiny, long = cut({"id": [-1, -2]}), numbers(*[[100]] * 50)
    found = all_rows(long.mix(tiny, weights=[1e-6, 1])).to_numpy()["id"]
    assert found.tolist() == [-1, -2, *range(5000)]
    assert len(resolve_barrier(long.mix(tiny)._plan, 0, InlineExecutor())) == 4
