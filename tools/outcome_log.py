"""Pytest plugin: append the outcome of every test to a JSON-lines file, for the table of `tools/run_parts.py`."""

import json
from pathlib import Path
from typing import Any

import pytest


class OutcomeLog:
    """One line per test: its id, outcome, reason if skipped, and seconds for setup, call and teardown together."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished: dict[str, dict[str, Any]] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        # pytest-xdist names a process, not a file, if that collected other tests than the rest.
        if not report.passed and "/" in report.nodeid:
            reason = "cannot be collected" if report.failed else _skip_reason(report)
            self._write({"test": report.nodeid, "outcome": report.outcome, "reason": reason, "seconds": 0.0})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        line = self._unfinished.setdefault(
            report.nodeid, {"test": report.nodeid, "outcome": "passed", "reason": "", "seconds": 0.0}
        )
        line["seconds"] += report.duration
        if report.failed:
            line["outcome"] = "failed"
        elif report.skipped and line["outcome"] == "passed":
            line["outcome"], line["reason"] = "skipped", _skip_reason(report)
        # A process of pytest-xdist that crashes reports the call of its test and nothing after it.
        if report.when == "teardown" or (report.failed and report.when == "???"):
            self._write(self._unfinished.pop(report.nodeid))

    def pytest_sessionfinish(self) -> None:
        for line in self._unfinished.values():
            self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _skip_reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcome-log", metavar="PATH", help="append the outcome of every test to this file")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcome-log")
    if path and not hasattr(config, "workerinput"):  # The controller of pytest-xdist sees all reports.
        config.pluginmanager.register(OutcomeLog(Path(path)), "outcome-log")
