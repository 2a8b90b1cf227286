"""The table of faults: what was tried, how often it was survived, how long the run stood still, what was lost.

A test records each fault it plants with the fixture `fault_table`. `make chaos` prints the table, and `--fault-table`
names a file to write it to. Rows travel with the reports of their tests, also from other processes. `--fault-trials`
names a file that hands the faults of one session on to the next, so that one table has both.

`@pytest.mark.seeds(60)` runs a test with 60 seeds in `make chaos`, times `--chaos-scale`, and with `few` others, one by
default, elsewhere. The seed is in the name of the test.
"""

import contextlib
import dataclasses
import json
import os
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import pytest

KEY = "fault"
BEGIN, END = "<!-- fault table -->", "<!-- end -->"
"""What stands between these in a page is the table, and is replaced by a new one."""


@dataclasses.dataclass
class Trial:
    """One fault, tried once."""

    fault: str
    survived: bool | None = True  # None: it could not be tried, and `lost` says why.
    seconds: float | None = None  # From the fault to the next report of the run.
    lost: str = "nothing"  # What did not come back, in the words of a user.
    times: int = 1  # How often it struck in this one run.
    told_s: float | None = None  # From the fault to the sentence about it, where it has to be noticed first.


@dataclasses.dataclass(frozen=True)
class Row:
    fault: str
    num_tried: int
    num_survived: int
    worst_s: float | None
    lost: str


class FaultTable:
    def __init__(self, properties: list[tuple[str, Any]]) -> None:
        self._properties = properties

    def skip(self, fault: str, reason: str) -> NoReturn:
        """A fault that cannot be had here: the table says so."""
        self._add(Trial(fault, None, lost=f"not tried: {reason}"))
        pytest.skip(reason)

    @contextlib.contextmanager
    def trying(self, fault: str) -> Iterator[Trial]:
        """Records a fault as survived unless what is inside raises."""
        trial = Trial(fault)
        try:
            yield trial
        except BaseException:
            trial.survived = False
            raise
        finally:
            self._add(trial)

    def _add(self, trial: Trial) -> None:
        self._properties.append((KEY, dataclasses.asdict(trial)))


def rows(trials: list[Trial]) -> list[Row]:
    """One row for each fault, by name: tests that run side by side end in any order."""
    by_fault: dict[str, list[Trial]] = {}
    for trial in trials:
        by_fault.setdefault(trial.fault, []).append(trial)
    return [
        Row(
            fault,
            sum(trial.times for trial in tried if trial.survived is not None),
            sum(trial.times for trial in tried if trial.survived),
            max((trial.seconds for trial in tried if trial.seconds is not None), default=None),
            _lost(tried),
        )
        for fault, tried in sorted(by_fault.items(), key=lambda pair: pair[0].casefold())
    ]


def _lost(tried: list[Trial]) -> str:
    lost = {trial.lost for trial in tried if trial.survived is not False}
    if len(lost) > 1:
        lost.discard("nothing")
    told_s = max((trial.told_s for trial in tried if trial.told_s is not None), default=None)
    delay = f" (reported within {told_s:.1f} s)" if told_s is not None else ""
    return (", ".join(sorted(lost)) or "not known") + delay


def markdown(table: list[Row]) -> str:
    lines = ["| fault | tried | survived | worst time to the next step | lost |", "| --- | ---: | ---: | ---: | --- |"]
    for row in table:
        worst = f"{row.worst_s:.2f} s" if row.worst_s is not None else "-"
        lines.append(f"| {row.fault} | {row.num_tried} | {row.num_survived} | {worst} | {row.lost} |")
    return "\n".join(lines) + "\n"


def headed(table: list[Row], date: str) -> str:
    """The table for a page, with when, how and where it was made."""
    tried, survived = sum(row.num_tried for row in table), sum(row.num_survived for row in table)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"Made on {date} by `make reliability`: {len(table)} kinds of faults, {tried} tried, {survived} survived; "
        f"Python {platform.python_version()} on {platform.system()}, {cores} cores.\n\n{markdown(table)}"
    )


def plain(table: list[Row]) -> list[str]:
    """The same for a terminal, in columns."""
    cells = [line.strip("| ").split(" | ") for line in markdown(table).splitlines()]
    del cells[1]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


def with_table(page: str, table: str) -> str:
    """The page with its table replaced; a page without marks is the table."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}\n\n{table}\n{end}{after}" if begin and end else table


class _Collecting:
    def __init__(self, config: pytest.Config) -> None:
        self._path: str | None = config.getoption("--fault-table")
        self._shown = self._path is not None or config.option.markexpr.startswith("chaos")
        self._trials: list[Trial] = []
        handed_on = config.getoption("--fault-trials")
        self._handed_on = Path(handed_on) if handed_on is not None else None
        if self._handed_on is not None and self._handed_on.exists():
            self._trials += [Trial(**json.loads(line)) for line in self._handed_on.read_text().splitlines()]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":  # It comes once, and also after a failure.
            self._trials += [Trial(**value) for key, value in report.user_properties if key == KEY]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._trials or not self._shown:
            return
        if self._handed_on is not None:
            lines = (json.dumps(dataclasses.asdict(trial)) for trial in self._trials)
            self._handed_on.write_text("".join(f"{line}\n" for line in lines))
        table = rows(self._trials)
        terminalreporter.section("faults")
        for line in plain(table):
            terminalreporter.write_line(line)
        if self._path is not None:
            path = Path(self._path)
            text = headed(table, datetime.now(UTC).date().isoformat())
            path.write_text(with_table(path.read_text() if path.exists() else "", text))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault-table", metavar="PATH", help="write the table of faults there, as Markdown")
    parser.addoption("--fault-trials", metavar="PATH", help="read the faults of an earlier session there, and add ours")
    parser.addoption("--chaos-scale", type=float, default=1.0, help="how many times as many seeds as usual (1.0)")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Collecting(config), "fault-table")
    config.addinivalue_line("markers", "seeds(many, few=1): how many in `make chaos`, and elsewhere")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("seeds")
    if mark is not None:
        many = max(1, round(mark.args[0] * metafunc.config.getoption("--chaos-scale")))
        seeds = [pytest.param(seed, marks=pytest.mark.chaos) for seed in range(100, 100 + many)]
        metafunc.parametrize("seed", [*range(mark.kwargs.get("few", 1)), *seeds])


@pytest.fixture
def fault_table(request: pytest.FixtureRequest) -> FaultTable:
    return FaultTable(request.node.user_properties)
