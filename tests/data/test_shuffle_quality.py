"""The number for how well rows were shuffled: its ends, its order, and what it stands for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.order import permutation
from paceline.data.quality import shuffle_quality


@given(st.integers(2, 500))
def test_rows_in_order_have_none(num: int) -> None:
    assert shuffle_quality(np.arange(num)) == 0.0
    assert shuffle_quality(np.arange(num)[::-1]) < 0.5 if num < 10 else shuffle_quality(np.arange(num)[::-1]) < 0.1


@given(st.integers(50, 3000), st.integers(0, 1000))
def test_a_random_order_is_near_one(num: int, seed: int) -> None:
    assert shuffle_quality(permutation(num, seed)) > 0.8


def test_almost_every_random_order_has_all_of_it() -> None:
    perfect = [shuffle_quality(permutation(2000, seed)) == 1.0 for seed in range(300)]
    assert np.mean(perfect) > 0.95


@given(st.lists(st.integers(), unique=True, max_size=60))
def test_it_is_a_part_of_one_and_knows_ranks_only(order: list[int]) -> None:
    found = shuffle_quality(np.array(order, dtype=object))
    assert 0.0 <= found <= 1.0
    ranks = {value: rank for rank, value in enumerate(sorted(order))}
    assert shuffle_quality([ranks[value] for value in order]) == found


def windowed(num: int, window: int) -> np.ndarray:
    return np.concatenate([begin + permutation(window, begin) for begin in range(0, num, window)])


def test_a_larger_window_shuffles_better() -> None:
    found = [shuffle_quality(windowed(8192, window)) for window in (8, 64, 512, 2048, 8192)]
    assert found == sorted(found)
    assert found[0] < 0.01
    assert found[-1] > 0.95


def test_shuffled_files_leave_neighbours_together() -> None:
    files = np.concatenate([np.arange(100) + 100 * file for file in permutation(100, 0)])
    assert 0.0 < shuffle_quality(files) < 0.05


def test_an_order_that_only_jumps_is_not_random() -> None:
    interleaved = np.arange(4096).reshape(2, 2048).T.reshape(-1)
    assert shuffle_quality(interleaved) < 0.5


@pytest.mark.parametrize("order", [[], [7]])
def test_one_row_is_always_shuffled(order: list[int]) -> None:
    assert shuffle_quality(order) == 1.0
