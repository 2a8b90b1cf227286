"""The table of faults: one row for each, the worst of its times, and nothing hidden."""

import pytest

from fault_table import FaultTable, Trial, markdown, plain, rows


def test_trials_of_one_fault_are_one_row_with_the_worst_time():
    trials = [Trial("a", True, 0.5), Trial("b", False, lost="a row"), Trial("a", True, 1.25), Trial("a", False)]
    assert markdown(rows(trials)).splitlines()[2:] == [
        "| a | 3 | 2 | 1.25 s | nothing |",
        "| b | 1 | 0 | - | not known |",
    ]
    assert plain(rows(trials))[1].split() == ["a", "3", "2", "1.25", "s", "nothing"]


def test_a_fault_that_a_test_fails_in_is_tried_and_not_survived():
    properties = []
    table = FaultTable(properties)
    with pytest.raises(ZeroDivisionError), table.trying("a") as trial:
        trial.seconds = 2.0 / 0
    table.record("b", survived=True, seconds=None, lost="the last second of metrics")
    recorded = [Trial(**value) for _, value in properties]
    assert recorded == [Trial("a", False), Trial("b", True, None, "the last second of metrics")]
