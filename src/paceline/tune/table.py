"""A search as one table, for a terminal that can be redrawn and for a notebook. Made anew whenever it is drawn."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from paceline._view import words
from paceline._view.words import counted
from paceline.tune import scopes, shown
from paceline.tune.drive.state import Search
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
"""What there is beside the running trials: headings, the best, those that were stopped last, the cursor's own line."""
_LEAST_ROWS = 3
_STOPPED = 3
_MARKUP = '<pre style="line-height:1.25">{code}</pre>'


@dataclass
class Drawn:
    """What is kept from one drawing to the next, beside the search itself."""

    name: str
    uri: str
    ended: list[str] = field(default_factory=list)
    """The trials that were stopped, paused or failed last."""
    _varied: frozenset[str] = frozenset()
    _num_known: int = 0

    def varied(self, search: Search) -> frozenset[str]:
        if len(search.trials) != self._num_known:
            self._num_known = len(search.trials)
            self._varied = shown.varied(search.trials.values())
        return self._varied

    def saw_end(self, trial_id: str) -> None:
        self.ended = [*(known for known in self.ended if known != trial_id), trial_id][-_STOPPED:]


def picture(search: Search, drawn: Drawn, now: float, width: int, height: int) -> RenderableType:
    """The search at a moment of the wall clock, in so many columns and at most so many lines."""
    only = drawn.varied(search)
    parts: list[RenderableType] = [_heading(search, drawn, now, width), _states(search)]
    if (best := _best(search, only)) is not None:
        parts.append(best)
    running = search.of_status("RUNNING")
    if running:
        room = max(_LEAST_ROWS, height - _OTHER_LINES)
        parts.append(_running(search, running, only, now, room, width))
    parts += _ended(search, drawn)
    return Group(*parts)


def in_two_forms(search: Search, drawn: Drawn, now: float, width: int, height: int) -> tuple[str, str]:
    """The same picture as text and as HTML, in which every text is escaped: nothing that a trial says is markup."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=width,
        force_terminal=True,
        force_jupyter=False,  # It would display by itself.
        color_system="standard",
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(picture(search, drawn, now, width, height))
    html = console.export_html(inline_styles=True, code_format=_MARKUP, clear=False)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines()), html


def _heading(search: Search, drawn: Drawn, now: float, width: int) -> Text:
    told = f"{counted(len(search.trials), 'trial')}, {words.duration(search.elapsed_s(now))}"
    if search.stopped_because:
        told += f", ends early: {words.first_line(search.stopped_because)}"
    text = Text.assemble(("search ", "dim"), (drawn.name, "bold"), f"  {told}", no_wrap=True, overflow="ellipsis")
    if len(text) + len(drawn.uri) + 2 <= width:
        text.append(f"  {drawn.uri}", "dim")
    return text


def _states(search: Search) -> Text:
    counts = shown.counts(search.trials.values())
    text = Text("  ", no_wrap=True, overflow="ellipsis")
    for name, style in _STYLES.items():
        if number := getattr(counts, name):
            text.append(f"{number} {name}", style)
            text.append("   ")
    return text


def _best(search: Search, only: frozenset[str]) -> Text | None:
    best = shown.leader(search)
    if best is None:
        return None
    return Text.assemble(
        ("  best ", "dim"),
        (best.trial.trial_id, "bold"),
        "  ",
        (f"{search.metric}={words.value(best.value)}", "bold green"),
        f"  iteration {best.trial.iteration}  ",
        (shown.config_text(best.trial.config, only), "dim"),
        no_wrap=True,
        overflow="ellipsis",
    )


def _running(
    search: Search, running: list[Trial], only: frozenset[str], now: float, room: int, width: int
) -> RenderableType:
    """Each parameter has a column of its own where these fit, else all are in one."""
    seen = running if len(running) <= room else running[: room - 1]
    rows = [
        {
            "  trial": f"  {trial.trial_id}",
            "iteration": str(trial.iteration),
            "time": words.duration(shown.ran_s(search, trial, now)),
            search.metric or "reported": _reached(trial, search.metric),
        }
        for trial in seen
    ]
    configs = [shown.parameters(trial.config) for trial in seen]
    names = [name for name in dict.fromkeys(name for config in configs for name in config) if name in only]
    columns = {name: [words.value(c[name]) if name in c else "" for c in configs] for name in names}
    if _width(columns) + sum(_width({name: [row[name] for row in rows]}) for name in rows[0]) > width:
        columns = {"config": [shown.config_text(trial.config, only) for trial in seen]}
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", width=width)
    for name in rows[0]:
        right = name in ("iteration", "time")
        fixed = min(width // 4, _width({name: [row[name] for row in rows]}) - 2)
        table.add_column(name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis", width=fixed)
    for name in columns:
        is_last = name == "config"
        table.add_column(name, no_wrap=True, overflow="ellipsis", style="dim", ratio=1 if is_last else None)
    # Takes what is left, so that the others lie together.
    table.add_column("", ratio=None if "config" in columns else 1)
    for at, row in enumerate(rows):
        table.add_row(*row.values(), *(column[at] for column in columns.values()))
    if len(seen) < len(running):
        return Group(table, Text(f"  and {len(running) - len(seen)} more", "dim"))
    return table


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    return sum(2 + max(map(cell_len, (name, *texts))) for name, texts in columns.items())


def _reached(trial: Trial, metric: str | None) -> str:
    if trial.last_result is None:
        return "-"
    if metric is None:
        return shown.metrics_text(trial.last_result, None)
    value = scopes.value_of(trial.last_result, metric)
    return words.value(value) if value is not None else "-"


def _ended(search: Search, drawn: Drawn) -> list[Text]:
    lines = []
    for trial_id in reversed(drawn.ended):
        trial = search.trials[trial_id]
        if not trial.why:
            continue
        state = shown.state(trial)
        lines.append(
            Text.assemble(
                "  ",
                (state, _STYLES[state]),
                f" {trial_id} at iteration {trial.iteration}: ",
                (words.first_line(trial.why), "dim"),
                no_wrap=True,
                overflow="ellipsis",
            )
        )
    return lines
