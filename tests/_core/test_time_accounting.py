"""Where a thread's time goes: always at one thing, so the parts sum to the whole, whoever looks and whenever."""

import contextlib
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline._core import time_accounting
from paceline._core.time_accounting import CHECKPOINT, DATA, REPORT, SETUP, USER_CODE, TimeAccounting


class Hands:
    """A clock that is set by hand."""

    at = 100.0

    def __call__(self):
        return self.at


@pytest.fixture
def hands():
    return Hands()


@pytest.fixture
def clock(hands):
    clock = TimeAccounting(hands)
    time_accounting.attach_clock(clock)
    yield clock
    time_accounting.detach_clock(clock)


KINDS = st.sampled_from([SETUP, USER_CODE, DATA, REPORT, CHECKPOINT])
NESTED = st.recursive(
    st.tuples(st.just("passes"), st.floats(0, 10)),
    lambda inner: st.tuples(KINDS, st.lists(inner, max_size=4), st.booleans()),
    max_leaves=30,
)


@given(st.lists(NESTED, max_size=6))
def test_whatever_is_nested_in_whatever_and_raises_the_parts_sum_to_the_whole(story):
    hands = Hands()
    clock = TimeAccounting(hands)
    totals = dict.fromkeys((SETUP, USER_CODE, DATA, REPORT, CHECKPOINT), 0.0)

    def play(entry, kind):
        if entry[0] == "passes":
            hands.at += entry[1]
            totals[kind] += entry[1]
            wall, sums = clock.read()
            assert sum(sums) == pytest.approx(wall)
            return
        inner, entries, raises = entry
        with contextlib.suppress(ZeroDivisionError), clock.at(inner):
            for each in entries:
                play(each, inner)
            if raises:
                raise ZeroDivisionError

    for entry in story:
        play(entry, SETUP)
    wall, sums = clock.read()
    assert wall == pytest.approx(hands.at - 100.0)
    assert list(sums) == pytest.approx([totals[kind] for kind in range(5)])


def test_time_after_the_stop_is_not_counted(clock, hands):
    hands.at += 2
    clock.stop()
    hands.at += 50
    with clock.at(DATA):
        hands.at += 50
    clock.stop()
    assert clock.read() == (2, (2, 0, 0, 0, 0))


def test_another_thread_neither_moves_the_clock_nor_has_one(clock, hands):
    def other():
        with clock.at(REPORT), time_accounting.account_time(DATA):
            hands.at += 1
        list(time_accounting.account_data_wait(iter([1, 2])))

    thread = threading.Thread(target=other)
    with clock.at(USER_CODE):
        thread.start()
        thread.join()
    assert clock.read()[1] == (0, 1, 0, 0, 0)


def test_the_time_until_each_item_is_there_is_waiting_for_data_and_what_is_done_with_it_is_not(clock, hands):
    def items():
        for item in range(3):
            hands.at += 10
            yield item
        hands.at += 5
        raise ValueError("broken")

    def use_items():
        for _ in time_accounting.account_data_wait(items()):
            hands.at += 1

    with clock.at(USER_CODE):
        with pytest.raises(ValueError, match="broken"):
            use_items()
        hands.at += 1
        assert list(time_accounting.account_data_wait(iter([1, 2]))) == [1, 2]
    assert clock.read()[1][DATA] == 35
    assert clock.read()[1][USER_CODE] == 4


def test_a_run_within_a_run_is_on_its_own_clock(clock, hands):
    inner = TimeAccounting(hands)
    time_accounting.attach_clock(inner)
    with time_accounting.account_time(DATA):
        hands.at += 1
    time_accounting.detach_clock(inner)
    with time_accounting.account_time(DATA):
        hands.at += 2
    assert inner.read()[1][DATA] == 1
    assert clock.read()[1][DATA] == 2


def test_a_turn_in_the_middle_of_a_look_is_noticed(hands):
    clock = TimeAccounting(hands)

    class Sums(list):
        """The thread turns while they are copied, once."""

        is_turned = False

        def copy(self):
            if not self.is_turned:
                self.is_turned = True
                with clock.at(DATA):
                    hands.at += 5
            return list(self)

    clock._sums = Sums(clock._sums)
    hands.at += 5
    assert clock.read() == (10, (5, 0, 5, 0, 0))
