"""The table of faults: one row for each, the worst of its times, and nothing hidden."""

import pytest

from fault_table import BEGIN, END, FaultTable, Trial, headed, markdown, plain, rows, with_table


def test_trials_of_one_fault_are_one_row_with_the_worst_of_all():
    properties = []
    table = FaultTable(properties)
    with pytest.raises(ZeroDivisionError), table.trying("b") as trial:
        trial.seconds = 2.0 / 0
    with pytest.raises(pytest.skip.Exception):
        table.skip("d", "no such thing here")
    trials = [
        *(Trial("a", True, 0.5), Trial("a", True, 1.25), Trial("a", False)),
        *(Trial("c", told_s=1.0), Trial("c", lost="a row", told_s=2.5, times=3)),
        *(Trial(**value) for _, value in properties),
    ]
    assert markdown(rows(trials)).splitlines()[2:] == [
        "| a | 3 | 2 | 1.25 s | nothing |",
        "| b | 1 | 0 | - | not known |",
        "| c | 4 | 4 | - | a row (told within 2.5 s) |",
        "| d | 0 | 0 | - | not tried: no such thing here |",
    ]
    assert plain(rows(trials))[1].split() == ["a", "3", "2", "1.25", "s", "nothing"]


def test_a_page_keeps_all_but_its_table_which_has_its_date():
    table = headed(rows([Trial("a"), Trial("a", False), Trial("b")]), "2026-03-01")
    assert table.startswith(
        "Made on 2026-03-01 by `make reliability`: 2 kinds of faults, 3 tried, 2 survived; Python 3."
    )
    page = f"# Title\n{BEGIN}\nold\n{END}\nafter\n"
    assert with_table(page, table) == f"# Title\n{BEGIN}\n\n{table}\n{END}\nafter\n"
    assert with_table(with_table(page, table), table) == with_table(page, table)
    assert with_table("no marks", "new\n") == "new\n"
