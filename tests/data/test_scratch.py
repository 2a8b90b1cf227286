"""Memory of concatenated arrays: used again, and never while somebody still refers to it."""

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data import scratch
from paceline.data.scratch import concatenate_arrays

LARGE = 300_000


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(scratch, "_scratch", scratch._ScratchMemory())


def halves(value: float) -> list[np.ndarray]:
    return [np.full(LARGE, value), np.full(LARGE, value + 1)]


@pytest.mark.parametrize("dtypes", [("f4", "f4"), ("u1", "u1"), ("M8[ns]", "M8[ns]"), (object, object), ("i4", "f4")])
def test_it_is_what_numpy_gives(dtypes):
    arrays = [np.zeros((200_000, 3), dtypes[0]), np.ones((300_000, 3), dtypes[1])]
    assert (concatenate_arrays(arrays) == np.concatenate(arrays)).all()
    assert concatenate_arrays(arrays).dtype == np.concatenate(arrays).dtype


def test_memory_is_used_again_once_the_last_view_is_gone():
    first = concatenate_arrays(halves(1))
    address, view = first.ctypes.data, first[10:20]
    del first
    gc.collect()
    second = concatenate_arrays(halves(3))
    assert second.ctypes.data != address
    assert view.tolist() == [1] * 10
    del view
    gc.collect()
    assert concatenate_arrays(halves(5)).ctypes.data == address


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=12))
def test_what_is_kept_stays_what_it_is(which):
    kept: dict[int, np.ndarray] = {}
    for value, place in enumerate(which):
        kept[place] = concatenate_arrays(halves(value))
        kept[place][0] = -value
        for array in kept.values():
            assert array[-1] == array[1] + 1
            assert array[0] == -array[1]


def test_no_more_than_so_much_is_held_for_later(monkeypatch):
    monkeypatch.setattr(scratch, "_MOST_KEPT", 10 << 20)
    arrays = [concatenate_arrays(halves(value)) for value in range(8)]
    del arrays
    gc.collect()
    assert 0 < scratch._scratch._num_free <= 10 << 20
    assert scratch._scratch._num_free == sum(map(len, scratch._scratch._free))
