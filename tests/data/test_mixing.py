"""The number that `stats()` prints: how well the rows are shuffled, told from the plan."""

import re

import numpy as np
import pytest

import paceline.data
from paceline.data.exec.gpus import check_gpus, visible
from paceline.data.transform import Pool


def quality(stats: str) -> float | None:
    found = re.search(r"^shuffle: (\d\.\d\d) of 1$", stats, re.MULTILINE)
    return float(found[1]) if found else None


def told(dataset, **options) -> float | None:
    iterator = dataset.iterator()
    for _ in iterator.iter_batches(**options):
        pass
    return quality(iterator.stats())


ROWS = paceline.data.range(4000, override_num_blocks=40)


def test_rows_in_their_own_order_have_no_number():
    assert told(ROWS) is None
    assert told(ROWS.map_batches(lambda batch: batch)) is None


def test_a_full_shuffle_is_as_good_as_random():
    assert told(ROWS.random_shuffle()) > 0.97


def test_units_that_change_places_mix_little_and_windows_on_top_mix_more():
    units = told(ROWS.randomize_block_order())
    both = told(ROWS.randomize_block_order(), local_shuffle_buffer_size=1000)
    assert 0 <= units < 0.2
    assert units < both <= 1


def test_the_number_grows_with_the_window():
    numbers = [told(ROWS, local_shuffle_buffer_size=size) for size in (10, 200, 1000, 4000)]
    assert numbers == sorted(numbers)
    assert numbers[0] < 0.1
    assert numbers[-1] > 0.97


def test_what_is_told_is_what_comes():
    from paceline.data.quality import shuffle_quality

    dataset = ROWS.randomize_block_order()
    rows = np.concatenate([batch["id"] for batch in dataset.iter_batches(local_shuffle_buffer_size=500)])
    assert told(dataset, local_shuffle_buffer_size=500) == pytest.approx(shuffle_quality(rows), abs=0.08)


def test_a_dataset_tells_it_too():
    dataset = ROWS.random_shuffle()
    dataset.take_all()
    assert quality(dataset.stats()) > 0.97


@pytest.mark.parametrize(
    ("each", "slots"),
    [(1, ["d", "c", "b", "a", "d"]), (2, ["d,c", "b,a", "d,c"]), (0.5, ["d", "d", "c", "c", "b"]), (0.25, ["d"] * 4)],
)
def test_processes_of_a_pool_see_gpus_from_the_last_on(each, slots):
    assert [visible("abcd", each, slot) for slot in range(len(slots))] == slots


def test_more_gpus_than_there_are_is_refused_by_name():
    check_gpus("map_batches(f)", Pool(num_gpus=1), 1)
    with pytest.raises(ValueError, match=r"map_batches\(f\) asks for num_gpus=2 .* there are 1"):
        check_gpus("map_batches(f)", Pool(num_gpus=2), 1)


def test_a_pool_that_needs_a_gpu_where_there_is_none_is_an_error_at_once(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    class Model:
        def __call__(self, batch):
            return batch

    with pytest.raises(ValueError, match="num_gpus=1 for each of its processes, and there is none here"):
        ROWS.map_batches(Model, num_gpus=1).take(1)
