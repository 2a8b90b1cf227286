"""A pass over rows that workers share: bytes in flight, workers that come late, lag behind or leave."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline.data.exec.ray.serving.shared_pass import PieceRows, SharedPass, WorkerPiece

RANKS = range(3)
PLENTY = 1 << 40


def add_block(state, number, size=9):
    state.add_block(size)
    state.add_pieces({rank: WorkerPiece(number, 0, 5, PieceRows(size // 3, ("ref", number, rank))) for rank in RANKS})


def take_all(state, reader):
    return [(piece.unit, ref) for piece, ref in state.take_pieces(reader, PLENTY, lambda place: ("loaded", place))]


def test_workers_that_have_not_come_are_waited_for_and_then_given_up():
    state = SharedPass(RANKS, 10, PLENTY)
    reader = state.join(0)
    add_block(state, 0)
    assert not state.wants_more(0, now=0)  # it has something to go on with
    take_all(state, reader)
    state.mark_passed(reader, 1)
    reader.is_asking = True
    assert state.wants_more(1, now=0)
    assert not state.wants_more(0, now=5)  # from here on they are waited for
    assert state.check_patience(now=8) == 7
    assert state.can_join(1)
    assert state.wants_more(0, now=15)
    assert not state.can_join(1)
    assert state.in_flight == 0


def test_a_pass_that_is_over_is_kept_for_those_that_come_a_little_later():
    state = SharedPass(RANKS, 10, PLENTY)
    first = state.join(0)
    add_block(state, 0)
    take_all(state, first)
    state.ended = True
    state.leave(first, now=20)
    assert not state.closed
    second = state.join(1)
    assert take_all(state, second) == [(0, ("ref", 0, 1))]
    state.leave(second, now=25)
    assert (state.closed, state.check_patience(now=25)) == (False, 5)
    state.check_patience(now=30)
    assert state.closed


def test_a_worker_gets_its_share_at_a_time_or_two_pieces():
    for share, num_first in ((0, 2), (3, 2), (9, 3), (11, 3)):
        state = SharedPass(RANKS, 10, share)
        reader = state.join(0)
        for number in range(5):
            add_block(state, number)
        assert len(take_all(state, reader)) == num_first
        assert take_all(state, reader) == []
        state.mark_passed(reader, 1)
        assert take_all(state, reader) == [(num_first, ("ref", num_first, 0))]


def test_rows_that_are_needed_last_are_moved_and_those_that_a_worker_has_are_not():
    state = SharedPass(RANKS, 10, 0)
    readers = [state.join(rank) for rank in RANKS]
    for number in range(4):
        add_block(state, number)
    take_all(state, readers[0])
    chosen = state.choose_rows_to_move(12)
    assert [rows.ref[1] for rows in chosen] == [3, 3, 3, 2]
    for rows in state.choose_rows_to_move(PLENTY):
        state.mark_moved(rows, ("file", *rows.ref))
    assert state.in_flight == 6
    assert state.choose_rows_to_move(PLENTY) == []
    # A worker that has nothing gets one even where there is no room; others wait.
    assert [ref for _, ref in state.take_pieces(readers[1], 0, lambda place: place)] == [("file", "ref", 0, 1)]
    assert state.take_pieces(readers[1], 0, lambda place: place) == []
    assert state.in_flight == 9


def test_rows_that_somebody_got_or_nobody_needs_any_more_while_they_were_moved_are_not_kept_in_a_file():
    state = SharedPass(RANKS, 10, PLENTY)
    readers = [state.join(rank) for rank in RANKS]
    add_block(state, 0)
    one, two, three = state.choose_rows_to_move(PLENTY)
    assert take_all(state, readers[0]) == [(0, ("ref", 0, 0))]
    state.leave(readers[1], now=0)
    for number, rows in enumerate((one, two, three)):
        state.mark_moved(rows, number)
    assert state.unneeded_places == [0, 1]
    assert state.in_flight == 3
    state.leave(readers[2], now=0)
    assert state.unneeded_places == [0, 1, 2]


class Sharing(RuleBasedStateMachine):
    """Against what each worker should have received, and what is held for whom.

    Rows have sizes, each worker its own or one for all, and are moved to files at any time, also halfway: the rows of
    `moving` are being written while other things happen.
    """

    @initialize(is_shared=st.booleans(), share=st.sampled_from([0, 4, PLENTY]))
    def begins(self, is_shared, share):
        self.state = SharedPass(RANKS, 10, share)
        self.share = share
        self.is_shared = is_shared
        self.takers = {}
        self.received = {rank: [] for rank in RANKS}
        self.rows_of = []
        self.uncut = []
        self.moving = []
        self.files = {}
        self.given_up = set()
        self.left = set()
        self.now = 0.0

    @rule(size=st.integers(1, 3))
    def comes(self, size):
        self.state.add_block(3 * size)
        self.uncut.append(size)

    @precondition(lambda self: self.uncut)
    @rule(ranks=st.sets(st.sampled_from(RANKS)))
    def is_cut(self, ranks):
        number, size = len(self.rows_of), self.uncut.pop(0)
        one_for_all = PieceRows(3 * size, (number, None))
        rows = {rank: one_for_all if self.is_shared else PieceRows(size, (number, rank)) for rank in ranks}
        self.rows_of.append((3 * size if self.is_shared else size, ranks))
        self.state.add_pieces({rank: WorkerPiece(number, 0, 5, rows.get(rank)) for rank in RANKS})

    @rule(rank=st.sampled_from(RANKS))
    def joins(self, rank):
        known = rank not in self.takers and rank not in self.given_up
        assert self.state.can_join(rank) == (known and not self.state.closed)
        if self.state.can_join(rank):
            self.takers[rank] = self.state.join(rank)

    @precondition(lambda self: set(self.takers) - self.left)
    @rule(data=st.data(), room=st.sampled_from([0, 5, PLENTY]))
    def takes(self, data, room):
        rank = data.draw(st.sampled_from(sorted(set(self.takers) - self.left)))
        reader = self.takers[rank]
        had_nothing = not any(reader.sent_bytes)
        pieces = self.state.take_pieces(reader, room, self.files.pop)
        for piece, ref in pieces:
            has_rows = rank in self.rows_of[piece.unit][1]
            assert ref == ((piece.unit, None if self.is_shared else rank) if has_rows else None)
        self.received[rank] += [piece.unit for piece, _ in pieces]
        assert self.received[rank] == list(range(len(self.received[rank])))
        assert sum(reader.sent_bytes) <= self.share or sum(map(bool, reader.sent_bytes)) <= 2
        if had_nothing:
            assert pieces or len(self.received[rank]) == len(self.rows_of)
        reader.is_asking = data.draw(st.booleans())

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

    @precondition(lambda self: not self.moving)
    @rule(num_bytes=st.integers(0, 30))
    def rows_begin_to_move(self, num_bytes):
        self.moving = [(rows, rows.ref) for rows in self.state.choose_rows_to_move(num_bytes)]

    @precondition(lambda self: self.moving)
    @rule()
    def rows_are_moved(self):
        for rows, ref in self.moving:
            place = object()
            self.files[place] = ref
            self.state.mark_moved(rows, place)
        self.moving = []

    @rule()
    def unneeded_rows_are_discarded(self):
        for place in self.state.unneeded_places:
            del self.files[place]
        self.state.unneeded_places = []

    @rule(later=st.floats(0, 6))
    def time_goes_on(self, later):
        self.now += later
        waiting = [reader for rank, reader in self.takers.items() if rank not in self.left and reader.is_starving]
        missing = set(RANKS) - set(self.takers) - self.given_up
        kept = any(ranks & missing for _, ranks in self.rows_of)
        wanted = self.state.wants_more(0, self.now)
        if not waiting:
            assert not wanted
        elif kept:
            self.given_up |= missing if wanted else set()
        else:
            assert wanted

    @invariant()
    def held_is_what_somebody_is_not_past_and_is_in_no_file(self):
        def is_past(rank, number):
            if rank in self.given_up or rank in self.left:
                return True
            return rank in self.takers and self.takers[rank].num_passed > number

        held = 3 * sum(self.uncut)
        in_files = [self.files[place] for place in self.files if place not in self.state.unneeded_places]
        for number, (size, ranks) in enumerate(self.rows_of):
            due = {rank for rank in ranks if not is_past(rank, number)}
            owners = ({None} if due else set()) if self.is_shared else due
            held += size * sum((number, owner) not in in_files for owner in owners)
            assert all(owner in owners for other, owner in in_files if other == number)
        assert self.state.in_flight == held


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


class Serving(RuleBasedStateMachine):
    """The service's rule: a block is added if there is room, or after room was made for a worker that starves.

    Readers take and pass in any order. Each gets its rows in order, and memory holds at most the limit and one block.
    """

    LIMIT = 36

    @initialize(world=st.integers(2, 3), is_shared=st.booleans())
    def begins(self, world, is_shared):
        self.world = world
        self.state = SharedPass(range(world), 10, self.LIMIT // world)
        self.readers = [self.state.join(rank) for rank in range(world)]
        self.is_shared = is_shared
        self.received = [[] for _ in range(world)]
        self.num_blocks = 0
        self.files = {}

    def make_room(self):
        if self.state.in_flight >= self.LIMIT:
            for rows in self.state.choose_rows_to_move(self.state.in_flight - self.LIMIT // 2):
                place = object()
                self.files[place] = rows.ref
                self.state.mark_moved(rows, place)

    def take(self, reader):
        if self.state.needs_file(reader):
            self.make_room()
        room = self.LIMIT - self.state.in_flight
        return self.state.take_pieces(reader, room, self.files.pop)

    @rule(size=st.integers(1, 6))
    def a_block_comes_if_it_is_wanted(self, size):
        if not self.state.wants_more(self.LIMIT - self.state.in_flight, 0.0):
            return
        self.make_room()
        # Two pieces of any worker are within its share: the bound is exact.
        num_bytes = size if self.is_shared else size * self.world
        self.state.add_block(num_bytes)
        assert self.state.in_flight < self.LIMIT + num_bytes
        one = PieceRows(num_bytes, self.num_blocks)
        rows = [one if self.is_shared else PieceRows(size, (self.num_blocks, rank)) for rank in range(self.world)]
        self.state.add_pieces({rank: WorkerPiece(self.num_blocks, 0, 5, rows[rank]) for rank in range(self.world)})
        self.num_blocks += 1

    @rule(data=st.data(), to_the_end=st.booleans())
    def reads(self, data, to_the_end):
        reader = data.draw(st.sampled_from(self.readers))
        received = self.received[reader.rank]
        while True:
            reader.is_asking = True
            pieces = self.take(reader)
            received += [ref for _, ref in pieces]
            expected = [number if self.is_shared else (number, reader.rank) for number in range(self.num_blocks)]
            assert received == expected[: len(received)]
            if pieces:
                self.state.mark_passed(reader, data.draw(st.integers(reader.num_passed, len(received))))
            elif reader.sent_bytes:
                self.state.mark_passed(reader, len(received))
            else:
                assert received == expected
                break
            if not to_the_end:
                break

    @invariant()
    def memory_holds_at_most_the_limit_and_one_block(self):
        assert self.state.in_flight <= self.LIMIT + 6 * (1 if self.is_shared else self.world)

    @invariant()
    def nothing_is_in_a_file_that_nobody_needs(self):
        assert self.state.unneeded_places == []


TestServing = Serving.TestCase
TestServing.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
