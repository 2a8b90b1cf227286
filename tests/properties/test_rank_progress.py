"""`Progress`, which is a tree, against a plain list."""

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._control.run import RankProgress

SIZES = st.one_of(st.integers(1, 70), st.integers(1000, 1100), st.just(32 * 32 * 3 + 5))
"""Of one, two and three levels."""


@settings(deadline=None, max_examples=150)
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


@settings(deadline=None, max_examples=20)
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
