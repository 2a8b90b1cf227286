"""The files in which population based training logs its policies: `pbt_global.txt` and `pbt_policy_<trial_id>.txt`.

Each line is a JSON list about one perturbation: the trial, the trial it was cloned from, the iterations of both, the
configuration that was mutated, and the one it became. A trial's own file has the lines that led to its weights: those
of the trial it was cloned from come first. All of it follows from the events of the search, so a resumed search writes
it anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paceline._storage.run_location import RunLocation
from paceline.tune.driver.events import Event, TrialCloned, TrialMade, TrialReported, decode_raw
from paceline.tune.driver.search_state import Search
from paceline.tune.driver.search_storage import OpenSearch
from paceline.tune.schedulers.scheduler import TrialScheduler

PolicyLine = list[Any]


class PolicyLog:
    def __init__(self, directory: Path, past: Iterable[Event]) -> None:
        self._directory = directory
        self._configs: dict[str, Any] = {}
        self._iterations: dict[str, int] = {}
        self._first_iterations: dict[str, int] = {}
        self._policies: dict[str, list[PolicyLine]] = {}
        self._all: list[PolicyLine] = []
        for event in past:
            self._add_event(event)
        if self._all:
            self._write("pbt_global.txt", self._all)
            for trial_id, policy in self._policies.items():
                self._write(f"pbt_policy_{trial_id}.txt", policy)

    def on_event(self, event: Event, search: Search) -> None:
        if self._add_event(event):
            trial_id = self._all[-1][0]
            with (self._directory / "pbt_global.txt").open("a") as file:
                file.write(json.dumps(self._all[-1]) + "\n")
            self._write(f"pbt_policy_{trial_id}.txt", self._policies[trial_id])

    def tick(self, search: Search, now: float) -> None:
        """Do nothing: the log is not driven by the clock."""

    def _add_event(self, event: Event) -> bool:
        """Whether the event is a perturbation."""
        match event:
            case TrialMade(trial=trial_id, config=config):
                self._configs[trial_id] = decode_raw(config)
            case TrialReported(trial=trial_id, seq=seq):
                self._iterations[trial_id] = self._first_iterations.get(trial_id, 0) + seq
            case TrialCloned(trial=trial_id, donor=donor, saved=saved, config=config):
                new = decode_raw(config)
                at = [self._iterations.get(trial_id, 0), saved.iteration]
                line = [trial_id, donor, *at, self._configs[donor], new]
                before = [one for one in self._policies.get(donor, []) if one[3] < saved.iteration]
                self._policies[trial_id] = [*before, line]
                self._configs[trial_id] = new
                self._first_iterations[trial_id] = self._iterations[trial_id] = saved.iteration
                self._all.append(line)
                return True
        return False

    def _write(self, name: str, lines: list[PolicyLine]) -> None:
        (self._directory / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_policy_logs(scheduler: TrialScheduler, open_search: OpenSearch, location: RunLocation) -> list[PolicyLog]:
    """Return the log of a search with population based training; none if it is off, or the search is in a store."""
    scheduler = getattr(scheduler, "base_scheduler", scheduler)
    if not getattr(scheduler, "log_config", False) or location.address is not None:
        return []
    return [PolicyLog(location.layout.root, open_search.past_events)]
