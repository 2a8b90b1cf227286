"""A pass over rows that workers share: bytes in flight, workers that come late, lag behind or leave."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paceline.data.exec.ray.serving.shared_pass import SharedPass, WorkerPiece

RANKS = range(3)


def add_block(state, number):
    state.add_block(10)
    state.add_pieces({rank: WorkerPiece(number, 0, 5, ref=("ref", number, rank)) for rank in RANKS})


def test_workers_that_have_not_come_are_waited_for_and_then_given_up():
    state = SharedPass(RANKS, patience_s=10)
    reader = state.join(0)
    add_block(state, 0)
    assert not state.wants_more(0, now=0)  # it has something to go on with
    state.take_pieces(reader)
    state.mark_passed(reader, 1)
    reader.is_asking = True
    assert state.wants_more(1, now=0)
    assert not state.wants_more(0, now=5)  # from here on they are waited for
    assert state.check_patience(now=8) == 7
    assert state.can_join(1)
    assert state.wants_more(0, now=15)
    assert not state.can_join(1)
    assert state.in_flight == 0


def test_neither_a_worker_that_lags_nor_rows_that_cannot_be_cut_stop_one_that_has_nothing_left():
    state = SharedPass(RANKS, patience_s=10)
    takers = [state.join(rank) for rank in RANKS]
    add_block(state, 0)
    state.take_pieces(takers[0])
    takers[0].is_asking = True
    assert not state.wants_more(0, now=0)
    state.mark_passed(takers[0], 1)
    assert state.wants_more(0, now=0)
    uncut = SharedPass(RANKS, patience_s=10)
    uncut.join(0).is_asking = True
    uncut.add_block(10)
    assert uncut.in_flight == 10
    assert uncut.wants_more(0, now=0)


def test_a_pass_that_is_over_is_kept_for_those_that_come_a_little_later():
    state = SharedPass(RANKS, patience_s=10)
    first = state.join(0)
    add_block(state, 0)
    state.take_pieces(first)
    state.ended = True
    state.leave(first, now=20)
    assert not state.closed
    second = state.join(1)
    assert [piece.ref for piece in state.take_pieces(second)] == [("ref", 0, 1)]
    state.leave(second, now=25)
    assert (state.closed, state.check_patience(now=25)) == (False, 5)
    state.check_patience(now=30)
    assert state.closed


class Sharing(RuleBasedStateMachine):
    """Against what each worker should have received, and what is held for whom."""

    def __init__(self):
        super().__init__()
        self.state = SharedPass(RANKS, patience_s=10)
        self.takers = {}
        self.received = {rank: [] for rank in RANKS}
        self.rows_of = []
        self.num_uncut = 0
        self.given_up = set()
        self.left = set()
        self.now = 0.0

    @rule()
    def comes(self):
        self.state.add_block(1)
        self.num_uncut += 1

    @precondition(lambda self: self.num_uncut)
    @rule(ranks=st.sets(st.sampled_from(RANKS)))
    def is_cut(self, ranks):
        number = len(self.rows_of)
        self.rows_of.append(ranks)
        self.num_uncut -= 1
        self.state.add_pieces({rank: WorkerPiece(number, 0, 5, number if rank in ranks else None) for rank in RANKS})

    @rule(rank=st.sampled_from(RANKS))
    def joins(self, rank):
        known = rank not in self.takers and rank not in self.given_up
        assert self.state.can_join(rank) == (known and not self.state.closed)
        if self.state.can_join(rank):
            self.takers[rank] = self.state.join(rank)

    @precondition(lambda self: set(self.takers) - self.left)
    @rule(data=st.data())
    def takes(self, data):
        rank = data.draw(st.sampled_from(sorted(set(self.takers) - self.left)))
        self.received[rank] += [piece.unit for piece in self.state.take_pieces(self.takers[rank])]
        assert self.received[rank] == list(range(len(self.rows_of)))
        self.takers[rank].is_asking = data.draw(st.booleans())

    @precondition(lambda self: set(self.takers) - self.left)
    @rule(data=st.data())
    def passes(self, data):
        rank = data.draw(st.sampled_from(sorted(set(self.takers) - self.left)))
        self.state.mark_passed(self.takers[rank], data.draw(st.integers(0, len(self.received[rank]))))

    @precondition(lambda self: set(self.takers) - self.left)
    @rule(data=st.data())
    def leaves(self, data):
        rank = data.draw(st.sampled_from(sorted(set(self.takers) - self.left)))
        self.left.add(rank)
        self.state.leave(self.takers[rank], self.now)

    @rule(later=st.floats(0, 6))
    def time_goes_on(self, later):
        self.now += later
        waiting = [reader for rank, reader in self.takers.items() if rank not in self.left and reader.is_starving]
        missing = set(RANKS) - set(self.takers) - self.given_up
        kept = any(ranks & missing for ranks in self.rows_of)
        wanted = self.state.wants_more(0, self.now)
        if not waiting:
            assert not wanted
        elif wanted and kept:
            self.given_up |= missing

    @invariant()
    def held_is_what_somebody_is_not_past(self):
        def is_past(rank, number):
            if rank in self.given_up or rank in self.left:
                return True
            return rank in self.takers and self.takers[rank].num_passed > number

        held = sum(any(not is_past(rank, number) for rank in ranks) for number, ranks in enumerate(self.rows_of))
        assert self.state.in_flight == held + self.num_uncut


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
