"""Messages that arrive twice, late, or in another order across ranks change nothing about a run."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.testing import Faults
from paceline.testing.faults.values import MESSAGES
from testing.fake_runs import LAST_CHECKPOINT, STEPS, drive, expected, rows

LIMIT = 1000
"""Seconds of the fake clock after which a run is stuck."""

messages = st.sampled_from(MESSAGES)


ranks = st.sampled_from((None, 0, 1))


@st.composite
def disturbed(draw):
    """Everything twice or some of it, in another order, and some messages late."""
    faults = Faults(seed=draw(st.integers(0, 1000)))
    if draw(st.booleans()):
        faults = faults.reorder()
    faults = faults.duplicate() if draw(st.booleans()) else faults.duplicate(draw(messages), rank=draw(ranks))
    for _ in range(draw(st.integers(0, 3))):
        # All three may be about one message: together they stay below the grace that a stop has (STOP_GRACE_S).
        late = draw(st.floats(0.2, 3))
        faults = faults.delay(draw(messages), rank=draw(ranks), delay_s=late, times=draw(st.integers(1, 8)))
    return faults


@settings(max_examples=50, deadline=None)
@given(faults=disturbed(), size=st.integers(1, 3), num_kills=st.integers(0, 2))
def test_a_run_ends_the_same_whatever_happens_to_its_messages(faults, size, num_kills):
    faults = faults.kills(num_kills, ranks=range(size), phases=("step", "report", "exit", "commit"), num_reports=STEPS)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        run, _ = drive(path, faults, size=size, limit=LIMIT)
        assert run.phase.ending == "complete", str(faults)
        assert run.num_failures <= num_kills, str(faults)
        for rank in range(size):
            assert rows(path, rank) == expected(rank), str(faults)
        assert [record.seq for record in run.checkpoints] == [LAST_CHECKPOINT]


@settings(max_examples=80, deadline=None)
@given(faults=disturbed(), size=st.integers(2, 3), after=st.integers(1, 20))
def test_all_ranks_stop_at_one_report_whatever_happens_to_the_messages(faults, size, after):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        run, _ = drive(path, faults, size=size, stop_after=after, limit=LIMIT)
        assert run.phase.ending in ("interrupted", "complete"), str(faults)
        assert len({len(rows(path, rank)) for rank in range(size)}) == 1, str(faults)
