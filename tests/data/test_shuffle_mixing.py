"""How well rows are shuffled: the number that `stats()` prints, which follows from the plan. And GPUs of pools."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline.data
from paceline.data.exec.process_supervisor import visible_devices
from paceline.data.order.shuffle import argsort_hashes, permutation, shuffle_quality


def parse_quality(stats):
    found = re.search(r"^shuffle: (\d\.\d\d) of 1$", stats, re.MULTILINE)
    return float(found[1]) if found else None


def read_quality(dataset, **options):
    iterator = dataset.iterator()
    for _ in iterator.iter_batches(**options):
        pass
    return parse_quality(iterator.stats())


ROWS = paceline.data.range(4000, override_num_blocks=40)


def test_only_shuffled_rows_have_a_number_and_it_grows_with_the_shuffle():
    assert read_quality(ROWS.map_batches(lambda batch: batch)) is None
    assert read_quality(ROWS.random_shuffle()) > 0.97
    units = read_quality(ROWS.randomize_block_order())
    both = read_quality(ROWS.randomize_block_order(), local_shuffle_buffer_size=1000)
    assert 0 <= units < 0.2
    assert units < both <= 1
    windows = [read_quality(ROWS, local_shuffle_buffer_size=size) for size in (10, 200, 1000, 4000)]
    assert windows == sorted(windows)
    assert windows[0] < 0.1
    assert windows[-1] > 0.97


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(2**40, 2**40 + 9)))
def test_hashes_are_sorted_as_numpy_sorts_them_even_if_they_share_their_upper_half(values):
    hashes = np.array(values, np.uint64)
    assert argsort_hashes(hashes).tolist() == np.argsort(hashes, kind="stable").tolist()


def test_the_number_is_that_of_the_rows_that_come():
    dataset = ROWS.randomize_block_order()
    rows = np.concatenate([batch["id"] for batch in dataset.iter_batches(local_shuffle_buffer_size=500)])
    expected = shuffle_quality(rows)
    assert read_quality(dataset, local_shuffle_buffer_size=500) == pytest.approx(expected, abs=0.08)
    shuffled = ROWS.random_shuffle()
    shuffled.take_all()
    assert parse_quality(shuffled.stats()) > 0.97


@given(st.integers(2, 500))
def test_rows_in_order_have_none(num):
    assert shuffle_quality(np.arange(num)) == 0.0
    assert shuffle_quality(np.arange(num)[::-1]) < (0.5 if num < 10 else 0.1)


def test_almost_every_random_order_is_one_and_those_that_keep_neighbours_or_only_jump_are_not():
    assert np.mean([shuffle_quality(permutation(2000, seed)) == 1.0 for seed in range(300)]) > 0.95
    files = np.concatenate([np.arange(100) + 100 * file for file in permutation(100, 0)])
    assert 0.0 < shuffle_quality(files) < 0.05
    interleaved = np.arange(4096).reshape(2, 2048).T.reshape(-1)
    assert shuffle_quality(interleaved) < 0.5


@given(st.lists(st.integers(), unique=True, max_size=60))
def test_it_is_a_part_of_one_and_knows_ranks_only(order):
    found = shuffle_quality(np.array(order, dtype=object))
    assert 0.0 <= found <= 1.0
    assert len(order) > 1 or found == 1.0
    ranks = {value: rank for rank, value in enumerate(sorted(order))}
    assert shuffle_quality([ranks[value] for value in order]) == found


@pytest.mark.parametrize(
    ("each", "slots"),
    [(1, ["d", "c", "b", "a", "d"]), (2, ["d,c", "b,a", "d,c"]), (0.5, ["d", "d", "c", "c", "b"]), (0.25, ["d"] * 4)],
)
def test_processes_of_a_pool_see_gpus_from_the_last_on(each, slots):
    assert [visible_devices("abcd", each, slot) for slot in range(len(slots))] == slots


def test_more_gpus_than_there_are_are_refused_by_name(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    class Model:
        def __call__(self, batch):
            return batch

    with pytest.raises(ValueError, match=r"needs 1 GPUs per process .*, and 0 are available"):
        ROWS.map_batches(Model, num_gpus=1).take(1)
