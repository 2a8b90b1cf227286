"""Renders a search as one table, for a live terminal and for a notebook. Rebuilt at each redraw."""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from paceline._view import formatting
from paceline._view.formatting import format_count
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
_make_line = functools.partial(Text.assemble, no_wrap=True, overflow="ellipsis")
_MARKUP = '<pre style="line-height:1.25">{code}</pre>'


@dataclass
class TrialTableState:
    """What is kept from one redraw to the next, besides the search itself."""

    name: str
    uri: str
    ended_trials: list[str] = field(default_factory=list)
    """The trials that most recently stopped, paused or failed."""
    _varied_parameters: frozenset[str] = frozenset()
    _num_known: int = 0

    def varied_parameters(self, search: Search) -> frozenset[str]:
        if len(search.trials) != self._num_known:
            self._num_known = len(search.trials)
            self._varied_parameters = search_summary.find_varied_parameters(search.trials.values())
        return self._varied_parameters

    def add_ended_trial(self, trial_id: str) -> None:
        self.ended_trials = [*(each for each in self.ended_trials if each != trial_id), trial_id][-_STOPPED:]


def build_table(search: Search, state: TrialTableState, now: float, width: int, height: int) -> RenderableType:
    """Build the table for a moment of the wall clock, `width` columns wide and at most `height` lines high."""
    only = state.varied_parameters(search)
    parts: list[RenderableType] = [_build_heading(search, state, now, width), _build_state_line(search)]
    if (best := _build_best_line(search, only)) is not None:
        parts.append(best)
    running = search.trials_with_status("RUNNING")
    if running:
        room = max(_LEAST_ROWS, height - _OTHER_LINES)
        parts.append(_build_running_table(search, running, only, now, room, width))
    parts += _build_ended_lines(search, state)
    return Group(*parts)


def render_text_and_html(
    search: Search, state: TrialTableState, now: float, width: int, height: int
) -> tuple[str, str]:
    """Render the table as text and as HTML. All text is escaped: nothing a trial outputs is treated as markup."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=width,
        force_terminal=True,
        force_jupyter=False,  # It would display the output itself.
        color_system="standard",
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(build_table(search, state, now, width, height))
    html = console.export_html(inline_styles=True, code_format=_MARKUP, clear=False)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines()), html


def _build_heading(search: Search, state: TrialTableState, now: float, width: int) -> Text:
    progress = f"{format_count(len(search.trials), 'trial')}, {formatting.duration(search.elapsed_s(now))}"
    if search.stopped_because:
        progress += f", ends early: {formatting.first_line(search.stopped_because)}"
    text = _make_line(("search ", "dim"), (state.name, "bold"), f"  {progress}")
    if len(text) + len(state.uri) + 2 <= width:
        text.append(f"  {state.uri}", "dim")
    return text


def _build_state_line(search: Search) -> Text:
    counts = search_summary.count_trials(search.trials.values())
    text = _make_line("  ")
    for name, style in _STYLES.items():
        if number := getattr(counts, name):
            text.append(f"{number} {name}", style)
            text.append("   ")
    return text


def _build_best_line(search: Search, only: frozenset[str]) -> Text | None:
    best = search_summary.find_leader(search)
    if best is None:
        return None
    value = (f"{search.metric}={formatting.value(best.value)}", "bold green")
    config = (search_summary.format_config(best.trial.config, only), "dim")
    trial_id = (best.trial.trial_id, "bold")
    return _make_line(("  best ", "dim"), trial_id, "  ", value, f"  iteration {best.trial.iteration}  ", config)


def _build_running_table(
    search: Search, running: list[Trial], only: frozenset[str], now: float, room: int, width: int
) -> RenderableType:
    """Give each parameter its own column if they fit; else put all in one."""
    listed = running if len(running) <= room else running[: room - 1]
    fixed = {
        "  trial": [f"  {trial.trial_id}" for trial in listed],
        "iteration": [str(trial.iteration) for trial in listed],
        "time": [formatting.duration(search_summary.trial_ran_s(search, trial, now)) for trial in listed],
        search.metric or "reported": [_format_reached(trial, search.metric) for trial in listed],
    }
    configs = [search_summary.flatten_parameters(trial.config) for trial in listed]
    names = [name for name in dict.fromkeys(name for config in configs for name in config) if name in only]
    columns = {name: [formatting.value(c[name]) if name in c else "" for c in configs] for name in names}
    if _columns_width(columns) + _columns_width(fixed) > width:
        columns = {"config": [search_summary.format_config(trial.config, only) for trial in listed]}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", width=width)
    for name, texts in fixed.items():
        justify: Literal["right", "left"] = "right" if name in ("iteration", "time") else "left"
        room = min(width // 4, _columns_width({name: texts}) - 2)
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", width=room)
    for name in columns:
        is_last = name == "config"
        table.add_column(name, no_wrap=True, overflow="ellipsis", style="dim", ratio=1 if is_last else None)
    # Takes the remaining width, so that the other columns stay together.
    table.add_column("", ratio=None if "config" in columns else 1)
    for cells in zip(*fixed.values(), *columns.values(), strict=True):
        table.add_row(*cells)
    if len(listed) < len(running):
        return Group(table, Text(f"  and {len(running) - len(listed)} more", "dim"))
    return table


def _columns_width(columns: Mapping[str, Sequence[str]]) -> int:
    return sum(2 + max(map(cell_len, (name, *texts))) for name, texts in columns.items())


def _format_reached(trial: Trial, metric: str | None) -> str:
    if trial.last_result is None:
        return "-"
    if metric is None:
        return search_summary.format_metrics(trial.last_result, None)
    value = scopes.get_metric_value(trial.last_result, metric)
    return formatting.value(value) if value is not None else "-"


def _build_ended_lines(search: Search, state: TrialTableState) -> list[Text]:
    lines = []
    for trial_id in reversed(state.ended_trials):
        trial = search.trials[trial_id]
        if not trial.why:
            continue
        label = search_summary.format_state(trial)
        why = (formatting.first_line(trial.why), "dim")
        lines.append(_make_line("  ", (label, _STYLES[label]), f" {trial_id} at iteration {trial.iteration}: ", why))
    return lines
