"""What becomes of a driver that wants a run, for any holder at any time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from paceline._storage import lease

times = st.floats(0, 1e6)
skews = st.floats(-lease.MAX_CLOCK_SKEW_S, lease.MAX_CLOCK_SKEW_S)
holders = st.builds(
    lease.LeaseHolder,
    number=st.integers(1, 9),
    pid=st.integers(1, 99),
    renewed_at=times,
    beat=times,
    ttl_s=st.floats(0.1, 1000),
    released=st.booleans(),
    alone=st.booleans(),
)


@given(holders, st.sampled_from([True, False, None]), times, times, times, skews)
def test_a_holder_that_renewed_within_its_time_is_followed_only_if_it_has_ended(holder, alive, now, wall, began, skew):
    """For clocks of two machines that differ by no more than they may."""
    silent_s = min(max(0.0, now - holder.beat), holder.ttl_s * 0.99)
    holder = replace(holder, beat=now - silent_s, renewed_at=wall - silent_s + skew)
    watched = lease.HolderWatch(replace(holder, beat=holder.beat - 1), min(began, now))
    for watch in (None, watched):
        decision = lease.decide_lease(holder, alive=alive, watched=watch, now=now, wall=wall)
        if holder.released or alive is False:
            assert decision == lease.AcquireLease(is_holder_gone=True)
        else:
            assert isinstance(decision, lease.RefuseLease | lease.WatchHolder)
            assert not (alive and isinstance(decision, lease.WatchHolder)), "what can be seen is not watched"


@pytest.mark.parametrize(
    ("alive", "since", "now", "wall", "expected"),
    [
        (True, None, 130.0, 130.0, lease.RefuseLease(0.0)),
        (True, None, 130.125, 130.0, lease.AcquireLease(is_holder_gone=False)),
        (True, None, 100.0, 1e6, lease.RefuseLease(30.0)),
        (True, None, 99.0, 130.0, lease.WatchHolder(30.0)),  # The machine has started again: `beat` means nothing.
        (None, None, 200.0, 430.0, lease.WatchHolder(30.0)),
        (None, None, 200.0, 430.125, lease.AcquireLease(is_holder_gone=False)),
        (None, 200.0, 230.0, 130.0, lease.WatchHolder(0.0)),
        (None, 200.0, 230.125, 130.0, lease.AcquireLease(is_holder_gone=False)),
    ],
)
def test_a_lease_lapses_after_the_whole_of_its_time(alive, since, now, wall, expected):
    holder = lease.LeaseHolder(1, renewed_at=100.0, beat=100.0, ttl_s=30.0)
    watched = lease.HolderWatch(holder, since) if since is not None else None
    assert lease.decide_lease(holder, alive=alive, watched=watched, now=now, wall=wall) == expected


@given(holders, st.sampled_from([True, None]), times, times)
def test_every_silent_holder_is_followed_in_the_end(holder, alive, now, wall):
    holder = replace(holder, released=False)
    watched = None
    waited_s = 0.0
    for _ in range(4):
        decision = lease.decide_lease(holder, alive=alive, watched=watched, now=now + waited_s, wall=wall + waited_s)
        match decision:
            case lease.AcquireLease(is_holder_gone=gone):
                assert not gone
                return
            case lease.RefuseLease(expires_in_s=lapses_in_s):
                assert 0 <= lapses_in_s <= holder.ttl_s
                waited_s += lapses_in_s * 1.001 + 0.01
            case lease.WatchHolder(max_wait_s=at_most_s):
                assert 0 <= at_most_s <= holder.ttl_s
                watched = watched or lease.HolderWatch(holder, now + waited_s)
                waited_s += at_most_s * 1.001 + 0.01
    raise AssertionError(f"never followed: {decision}")
