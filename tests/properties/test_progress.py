"""`Progress`, which is kept in chunks, against a plain list."""

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._control.run import Progress


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 200), st.integers(0, 5), st.data())
def test_progress_is_a_list_that_knows_its_least(size: int, first: int, data: st.DataObject) -> None:
    plain, progress = [first] * size, Progress.of(size, first)
    moves = st.lists(st.tuples(st.integers(0, size - 1), st.integers(1, 3)), max_size=40)
    for rank, by in data.draw(moves):
        plain[rank] += by
        progress = progress.advanced(rank, plain[rank])
        assert [progress[at] for at in range(size)] == plain
        assert progress.least == min(plain)
        assert progress.num_at_least == plain.count(min(plain))


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 200), st.randoms(use_true_random=False))
def test_the_least_moves_with_the_last_rank_of_each_round(size: int, random) -> None:
    progress = Progress.of(size, 0)
    for seq in (1, 2):
        ranks = list(range(size))
        random.shuffle(ranks)
        for rank in ranks:
            assert progress.least == seq - 1
            progress = progress.advanced(rank, seq)
        assert progress.least == seq
        assert progress.num_at_least == size


def test_the_progress_before_a_report_is_not_changed_by_it() -> None:
    before = Progress.of(130, 3)
    after = before.advanced(129, 4)
    assert before == Progress.of(130, 3)
    assert after[129] == 4
    assert before[129] == 3
