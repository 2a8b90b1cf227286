"""Messages that arrive twice, late, or in another order across ranks change nothing about a run."""

import sys
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "testing"))
from fake_runs import STEPS, drive, expected, rows

from paceline._control.events import StopRequested
from paceline.testing import Faults
from paceline.testing.faults.values import MESSAGES

messages = st.sampled_from(MESSAGES)


@st.composite
def disturbed(draw):
    faults = Faults(seed=draw(st.integers(0, 1000)))
    for _ in range(draw(st.integers(1, 4))):
        match draw(st.sampled_from(("duplicate", "reorder", "delay"))):
            case "duplicate":
                faults = faults.duplicate(draw(messages))
            case "reorder":
                faults = faults.reorder(draw(messages))
            case "delay":
                faults = faults.delay(draw(messages), delay_s=draw(st.floats(0, 5)), times=draw(st.integers(1, 5)))
    return faults


@settings(max_examples=60, deadline=None)
@given(faults=disturbed(), size=st.integers(1, 3), num_kills=st.integers(0, 2))
def test_a_run_ends_the_same_whatever_happens_to_its_messages(faults, size, num_kills):
    faults = faults.kills(num_kills, ranks=range(size), num_reports=STEPS)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        run, _ = drive(path, faults, size=size)
        assert run.phase.ending == "complete", str(faults)
        assert run.num_failures <= num_kills, str(faults)
        for rank in range(size):
            assert rows(path, rank) == expected(rank), str(faults)
        assert [record.seq for record in run.checkpoints] == [STEPS]


@settings(max_examples=40, deadline=None)
@given(faults=disturbed(), size=st.integers(1, 3))
def test_all_ranks_stop_at_one_report_whatever_happens_to_the_messages(faults, size):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        run, _ = drive(path, faults, size=size, before=lambda c: c._inbox.append(StopRequested(1)))
        assert run.phase.ending in ("interrupted", "complete"), str(faults)
        assert len({len(rows(path, rank)) for rank in range(size)}) == 1, str(faults)
