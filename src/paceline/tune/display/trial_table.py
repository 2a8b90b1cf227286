"""Renders a search as a block of lines with a table of its running trials, for a live terminal and for a notebook."""

from __future__ import annotations

from collections.abc import Iterator

from paceline._view import formatting
from paceline._view.formatting import display_width, escape_unprintable, format_count
from paceline.train.display.styled_lines import (
    Columns,
    StyledLine,
    StyledPiece,
    columns_width,
    format_columns,
    truncate_line,
)
from paceline.tune.display import search_summary
from paceline.tune.driver.search_state import Search
from paceline.tune.results import scopes
from paceline.tune.trial import Trial

_STYLES = {
    "running": "cyan",
    "waiting": "dim",
    "paused": "yellow",
    "finished": "green",
    "stopped": "magenta",
    "failed": "bold red",
}
_OTHER_LINES = 9
"""Lines besides the running trials: headings, the best, the last stopped ones, the cursor's own line."""
_LEAST_ROWS = 3
_STOPPED = 3


class TrialTable:
    """What is kept from one redraw to the next, besides the search itself."""

    def __init__(self, name: str, uri: str) -> None:
        self._name = name
        self._uri = uri
        self._ended_trials: list[str] = []
        """The trials that most recently stopped, paused or failed."""
        self._varied_parameters: frozenset[str] = frozenset()
        self._num_trials = 0

    def add_ended_trial(self, trial_id: str) -> None:
        self._ended_trials = [*(each for each in self._ended_trials if each != trial_id), trial_id][-_STOPPED:]

    def render(self, search: Search, now: float, width: int, height: int) -> list[StyledLine]:
        """Render at a moment of the wall clock, `width` columns wide and at most `height` lines high."""
        if len(search.trials) != self._num_trials:
            self._num_trials = len(search.trials)
            self._varied_parameters = search_summary.find_varied_parameters(search.trials.values())
        lines = [self._format_heading(search, now, width), _format_states(search)]
        lines += _format_best(search, self._varied_parameters)
        if running := search.trials_with_status("RUNNING"):
            room = max(_LEAST_ROWS, height - _OTHER_LINES)
            lines += _format_running(search, running, self._varied_parameters, now, room, width)
        lines += self._format_ended(search)
        return [truncate_line(line, width) for line in lines]

    def _format_heading(self, search: Search, now: float, width: int) -> StyledLine:
        progress = f"{format_count(len(search.trials), 'trial')}, {formatting.duration(search.elapsed_s(now))}"
        if search.stopped_because:
            progress += f", ends early: {_escape_first_line(search.stopped_because)}"
        name, uri = escape_unprintable(self._name), f"  {escape_unprintable(self._uri)}"
        is_wide = display_width(f"search {name}  {progress}{uri}") <= width
        return (("search ", "dim"), (name, "bold"), (f"  {progress}", ""), (uri if is_wide else "", "dim"))

    def _format_ended(self, search: Search) -> Iterator[StyledLine]:
        for trial_id in reversed(self._ended_trials):
            trial = search.trials[trial_id]
            if trial.why:
                label = search_summary.format_state(trial)
                where = f" {trial.label} at iteration {trial.iteration}: "
                yield (("  ", ""), (label, _STYLES[label]), (where, ""), (_escape_first_line(trial.why), "dim"))


def _format_states(search: Search) -> StyledLine:
    counts = search_summary.count_trials(search.trials.values())
    pieces: list[StyledPiece] = [("  ", "")]
    for name, style in _STYLES.items():
        if number := getattr(counts, name):
            pieces += [(f"{number} {name}", style), ("   ", "")]
    return tuple(pieces)


def _format_best(search: Search, only: frozenset[str]) -> Iterator[StyledLine]:
    best = search_summary.find_leader(search)
    if best is not None:
        value = f"{search.metric}={formatting.value(best.value)}"
        yield (
            ("  best ", "dim"),
            (best.trial.label, "bold"),
            ("  ", ""),
            (escape_unprintable(value), "bold green"),
            (f"  iteration {best.trial.iteration}  ", ""),
            (escape_unprintable(search_summary.format_config(best.trial.config, only)), "dim"),
        )


def _format_running(
    search: Search, running: list[Trial], only: frozenset[str], now: float, room: int, width: int
) -> list[StyledLine]:
    """Give each parameter its own column if they fit; else put all in one."""
    listed = running if len(running) <= room else running[: room - 1]
    fixed: Columns = [
        ("trial", [trial.label for trial in listed]),
        ("iteration", [str(trial.iteration) for trial in listed]),
        ("time", [formatting.duration(search_summary.trial_ran_s(search, trial, now)) for trial in listed]),
        (escape_unprintable(search.metric or "reported"), [_format_reached(trial, search.metric) for trial in listed]),
    ]
    configs = [search_summary.flatten_parameters(trial.config) for trial in listed]
    names = [name for name in dict.fromkeys(name for config in configs for name in config) if name in only]
    columns: Columns = [
        (escape_unprintable(name), [formatting.value(config[name]) if name in config else "" for config in configs])
        for name in names
    ]
    if columns_width(columns) + columns_width(fixed) > width:
        texts = [search_summary.format_config(trial.config, only) for trial in listed]
        columns = [("config", [escape_unprintable(text) for text in texts])]
    left = format_columns(fixed, right=("iteration", "time"), max_width=width // 4)
    right = format_columns(columns, style=lambda row, name: "dim") if columns else [()] * len(left)
    lines = [one + other for one, other in zip(left, right, strict=True)]
    if len(listed) < len(running):
        lines.append(((f"  and {len(running) - len(listed)} more", "dim"),))
    return lines


def _format_reached(trial: Trial, metric: str | None) -> str:
    if trial.last_result is None:
        return "-"
    if metric is None:
        return escape_unprintable(search_summary.format_metrics(trial.last_result, None))
    value = scopes.get_metric_value(trial.last_result, metric)
    return formatting.value(value) if value is not None else "-"


def _escape_first_line(text: str) -> str:
    return escape_unprintable(formatting.first_line(text))
