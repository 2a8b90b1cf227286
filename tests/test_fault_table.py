"""The table of faults: one row for each, the worst of its times, and nothing hidden."""

import pytest

from fault_table import BEGIN, END, FaultTable, Trial, headed, markdown, plain, rows, with_table


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


def test_what_was_lost_once_is_said_and_so_is_the_longest_time_to_a_verdict():
    trials = [Trial("a"), Trial("a", lost="a row"), Trial("b", told_s=1.0), Trial("b", told_s=2.5, times=3)]
    assert markdown(rows(trials)).splitlines()[2:] == [
        "| a | 2 | 2 | - | a row |",
        "| b | 4 | 4 | - | nothing (told within 2.5 s) |",
    ]


def test_a_fault_that_cannot_be_had_is_in_the_table_with_the_reason():
    properties = []
    with pytest.raises(pytest.skip.Exception):
        FaultTable(properties).skip("a", "no such thing here")
    trials = [Trial(**value) for _, value in properties]
    assert markdown(rows(trials)).splitlines()[2:] == ["| a | 0 | 0 | - | not tried: no such thing here |"]


def test_a_table_in_a_page_says_when_and_how_it_was_made():
    first, empty, *rest = headed(rows([Trial("a"), Trial("a", False), Trial("b")]), "2026-03-01").splitlines()
    assert first.startswith(
        "Made on 2026-03-01 by `make reliability`: 2 kinds of faults, 3 tried, 2 survived; Python 3."
    )
    assert empty == ""
    assert rest == markdown(rows([Trial("a"), Trial("a", False), Trial("b")])).splitlines()


def test_a_page_keeps_all_but_its_table():
    page = f"# Title\n{BEGIN}\nold\n{END}\nafter\n"
    assert with_table(page, "new\n") == f"# Title\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert with_table(with_table(page, "new\n"), "new\n") == with_table(page, "new\n")
    assert with_table("no marks", "new\n") == "new\n"
