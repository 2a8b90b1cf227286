"""Trees that share their parts: `Trie` against a dict, every version kept, and `RankProgress` against a list."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._control.run import RankProgress
from paceline._core.trie import Trie

KEYS = st.one_of(st.integers(0, 40), st.integers(0, 1200), st.integers(0, 10**9))
CHANGES = st.lists(st.tuples(st.sampled_from(["put", "put", "without"]), KEYS, st.one_of(st.none(), st.integers())))


@settings(max_examples=300)
@given(CHANGES, st.lists(KEYS, max_size=5))
def test_a_trie_is_a_dict_whose_every_version_stays_as_it_was(changes, others):
    plain = {}
    trie = Trie()
    versions = [(trie, dict(plain))]
    for change, key, value in changes:
        if change == "put":
            plain[key] = value
            trie = trie.put(key, value)
        else:
            # Keys that are there are drawn again seldom, so one of them goes.
            key = next(iter(plain), key)
            plain.pop(key, None)
            trie = trie.without(key)
        versions.append((trie, dict(plain)))
    for trie, plain in versions:
        assert list(trie.items()) == sorted(plain.items())
        assert list(trie) == sorted(plain)
        assert list(trie.values()) == [plain[key] for key in sorted(plain)]
        assert len(trie) == len(plain)
        assert bool(trie) == bool(plain)
        for key in (*plain, *others):
            assert (key in trie) == (key in plain)
            assert trie.get(key, "none") == plain.get(key, "none")


@settings(max_examples=100)
@given(st.dictionaries(KEYS, st.integers(), max_size=40), KEYS, st.randoms(use_true_random=False))
def test_tries_are_equal_if_their_entries_are_whatever_was_there_before(plain, other, random):
    keys = list(plain)
    tries = []
    for _ in range(2):
        random.shuffle(keys)
        trie = Trie()
        if other not in plain:
            trie = trie.put(other, 1).without(other)
        for key in keys:
            trie = trie.put(key, plain[key])
        tries.append(trie)
    assert tries[0] == tries[1]
    if keys:
        assert tries[0] != tries[1].without(keys[0])
        assert tries[0] != tries[1].put(keys[0], plain[keys[0]] + 1)
    assert tries[0] != plain


def test_a_missing_key_is_a_key_error():
    trie = Trie[int]().put(3, 1)
    assert trie[3] == 1
    for missing in (0, 35, 10**6):
        with pytest.raises(KeyError):
            trie[missing]
    assert trie.without(4) is trie


def test_a_change_copies_little_however_many_entries_there_are():
    def copied(size):
        trie = Trie()
        for key in range(size):
            trie = trie.put(key, True)
        before = sys.getallocatedblocks()
        versions = [trie := trie.put(key, False) for key in range(200)]
        return (sys.getallocatedblocks() - before) // len(versions)

    assert copied(10_000) <= copied(1_000) + 8


SIZES = st.one_of(st.integers(1, 70), st.integers(1000, 1100), st.just(32 * 32 * 3 + 5))
"""Of one, two and three levels."""


@settings(max_examples=150)
@given(SIZES, st.integers(0, 5), st.data())
def test_progress_is_a_list_that_knows_its_least(size, first, data):
    plain, progress = [first] * size, RankProgress.start_at(size, first)
    moves = st.lists(st.tuples(st.integers(0, size - 1), st.integers(1, 3)), max_size=40)
    for rank, by in data.draw(moves):
        plain[rank] += by
        progress = progress.advance(rank, plain[rank])
        assert progress[rank] == plain[rank]
        assert progress.minimum == min(plain)
    assert [progress[at] for at in range(size)] == plain


@settings(max_examples=20)
@given(SIZES, st.randoms(use_true_random=False))
def test_the_least_moves_with_the_last_rank_of_each_round(size, random):
    progress = RankProgress.start_at(size, 0)
    for seq in (1, 2):
        ranks = list(range(size))
        random.shuffle(ranks)
        for rank in ranks:
            assert progress.minimum == seq - 1
            progress = progress.advance(rank, seq)
        assert progress.minimum == seq
    assert progress == RankProgress.start_at(size, 2), "it does not matter by which way it came there"
