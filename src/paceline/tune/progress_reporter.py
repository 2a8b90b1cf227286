"""Progress reporters: what a search prints, in place of our own table. `RunConfig(progress_reporter=...)`.

A reporter is asked often whether it wants to report, and gets all trials when it does. It runs in the driver.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from paceline._core import arguments
from paceline._core.arguments import flatten_dict
from paceline._core.lazy_imports import explain_module
from paceline._core.plain_values import get_metric
from paceline._view import formatting
from paceline.train.display.screen import show_in_notebook
from paceline.train.display.styled_lines import format_columns, to_plain_text
from paceline.tune.results import scopes
from paceline.tune.results.report_history import ADDED_METRICS
from paceline.tune.trial import Status, Trial

__all__ = ["CLIReporter", "JupyterNotebookReporter", "ProgressReporter"]

_STATUSES: tuple[Status, ...] = ("RUNNING", "PAUSED", "PENDING", "TERMINATED", "ERROR")
"""In the order in which trials are listed."""
Names = Sequence[str] | Mapping[str, str]


class ProgressReporter:
    """Subclass this, implement `should_report` and `report`, and pass an instance as `progress_reporter`.

        class Dots(tune.ProgressReporter):
            def should_report(self, trials, done=False):
                return done

            def report(self, trials, done, *sys_info):
                print("." * len(trials))

    One that raises is logged and dropped; the search continues.
    """

    def setup(
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Called once, when the search starts. `total_samples` is the number of trials, None if it is not known."""

    def should_report(self, trials: list[Trial], done: bool = False) -> bool:
        """Whether to report now. Called after each event and several times a second; `done`: the search has ended."""
        raise NotImplementedError

    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        """Report the progress; `sys_info` are lines about the scheduler."""
        raise NotImplementedError


class _TableReporter(ProgressReporter):
    DEFAULT_COLUMNS: ClassVar[dict[str, str]] = {"training_iteration": "iter", "time_total_s": "total time (s)"}
    """The metrics shown if none are named, with their headings."""
    VALID_SUMMARY_TYPES: ClassVar[set[type]] = {int, float, type(None)}
    """The types of metrics that are shown without being named."""

    def __init__(
        self,
        *,
        metric_columns: Names | None = None,
        parameter_columns: Names | None = None,
        total_samples: int | None = None,
        max_progress_rows: int = 20,
        max_error_rows: int = 20,
        max_column_length: int = 20,
        max_report_frequency: float = 5,
        infer_limit: int = 3,
        print_intermediate_tables: bool | None = None,
        metric: str | None = None,
        mode: str | None = None,
        sort_by_metric: bool = False,
    ) -> None:
        self._metrics = _parse_columns("metric_columns", metric_columns)
        self._parameters = _parse_columns("parameter_columns", parameter_columns)
        self._total_samples = arguments.check_int("total_samples", total_samples, at_least=1, optional=True)
        self._max_progress_rows = arguments.check_int("max_progress_rows", max_progress_rows, at_least=0)
        self._max_error_rows = arguments.check_int("max_error_rows", max_error_rows, at_least=0)
        self._max_column_length = arguments.check_int("max_column_length", max_column_length, at_least=3)
        self._interval_s = arguments.check_number("max_report_frequency", max_report_frequency, at_least=0)
        self._infer_limit = arguments.check_int("infer_limit", infer_limit, at_least=0)
        arguments.check_bool("print_intermediate_tables", print_intermediate_tables, optional=True)
        self._prints_intermediate = print_intermediate_tables is not False
        arguments.check_choice("mode", mode, (*scopes.MODES, None))
        self._metric, self._mode = metric, mode
        self._sort_by_metric = arguments.check_bool("sort_by_metric", sort_by_metric)
        self._start_time = time.time()
        self._reported_at = -math.inf

    def setup(
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.set_start_time(start_time)
        if total_samples is not None:
            self.set_total_samples(total_samples)
        self.set_search_properties(metric, mode)

    def set_search_properties(self, metric: str | None, mode: str | None) -> bool:
        """Take the metric and mode of the search, unless it has its own. False if those are others."""
        if (self._metric and metric and self._metric != metric) or (self._mode and mode and self._mode != mode):
            return False
        self._metric, self._mode = self._metric or metric, self._mode or mode
        return True

    def set_total_samples(self, total_samples: int) -> None:
        self._total_samples = total_samples

    def set_start_time(self, timestamp: float | None = None) -> None:
        self._start_time = timestamp if timestamp is not None else time.time()

    def add_metric_column(self, metric: str, representation: str | None = None) -> None:
        """Show one more metric, under its own name or another heading."""
        self._metrics = _add_column("metric", self._metrics or dict(self.DEFAULT_COLUMNS), metric, representation)

    def add_parameter_column(self, parameter: str, representation: str | None = None) -> None:
        """Show one more parameter, under its own name or another heading."""
        self._parameters = _add_column("parameter", self._parameters or {}, parameter, representation)

    def should_report(self, trials: list[Trial], done: bool = False) -> bool:
        """True every `max_report_frequency` seconds, and at the end."""
        now = time.monotonic()
        if not done and (not self._prints_intermediate or now - self._reported_at < self._interval_s):
            return False
        self._reported_at = now
        return True

    def format_report(self, trials: list[Trial], done: bool, *sys_info: str) -> str:
        """Return what is shown: a heading, the trials by status, the errors and the best trial."""
        counts = Counter(trial.status for trial in trials)
        total = f"/{self._total_samples}" if self._total_samples is not None else ""
        states = ", ".join(f"{counts[status]} {status}" for status in _STATUSES if counts[status]) or "none yet"
        running_s = time.time() - self._start_time
        lines = [
            "== Status ==",
            f"Current time: {time.strftime('%Y-%m-%d %H:%M:%S')} (running for {timedelta(seconds=int(running_s))})",
            *sys_info,
            *self._describe_best(trials),
            f"Number of trials: {len(trials)}{total} ({states})",
            *self._format_trials(trials, len(trials) if done else self._max_progress_rows),
            *self._format_errors([trial for trial in trials if trial.status == "ERROR"]),
        ]
        return "\n".join(lines) + "\n"

    def _describe_best(self, trials: Iterable[Trial]) -> list[str]:
        if self._metric is None or self._mode is None:
            return []
        values = ((trial, scopes.get_metric_value(trial.last_result, self._metric)) for trial in trials)
        best = scopes.select_best(((trial, value) for trial, value in values if value is not None), self._mode)
        if best is None:
            return []
        trial, value = best
        return [
            f"Current best trial: {trial.trial_name} with {self._metric}={value:g} and parameters={dict(trial.config)}"
        ]

    def _format_trials(self, trials: Sequence[Trial], num_rows: int) -> list[str]:
        if not trials or not num_rows:
            return []
        ordered = sorted(trials, key=self._sort_key)
        listed = ordered[:num_rows]
        metrics = self._metrics if self._metrics is not None else self._infer_metrics(trials)
        parameters = self._parameters
        if parameters is None:
            parameters = {name: name for trial in trials for name in flatten_dict(trial.config)}
        columns: list[tuple[str, list[str]]] = [
            ("Trial name", [trial.trial_name for trial in listed]),
            ("status", [trial.status for trial in listed]),
        ]
        columns += [
            (heading, [self._format_value(get_metric(dict(trial.config), name)) for trial in listed])
            for name, heading in parameters.items()
        ]
        columns += [
            (heading, [self._format_value(get_metric(dict(trial.last_result or {}), name)) for trial in listed])
            for name, heading in metrics.items()
        ]
        lines = [to_plain_text(line).rstrip() for line in format_columns(columns)]
        if len(ordered) > num_rows:
            rest = Counter(trial.status for trial in ordered[num_rows:])
            states = ", ".join(f"{number} {status}" for status, number in rest.items())
            lines.append(f"... {len(ordered) - num_rows} more trials not shown ({states})")
        return lines

    def _sort_key(self, trial: Trial) -> tuple[float, ...]:
        if not self._sort_by_metric or self._metric is None:
            return (_STATUSES.index(trial.status),)
        value = scopes.get_metric_value(trial.last_result, self._metric)
        if value is None or math.isnan(value):
            return (1, 0)
        return (0, -value if self._mode == "max" else value)

    def _infer_metrics(self, trials: Iterable[Trial]) -> dict[str, str]:
        """Return the default columns, and the first few numbers that trials report; the metric first."""
        found = {self._metric: self._metric} if self._metric is not None else {}
        for trial in trials:
            for name, value in flatten_dict(dict(trial.last_result or {})).items():
                is_added = name.partition("/")[0] in ADDED_METRICS or name in self.DEFAULT_COLUMNS
                if len(found) < self._infer_limit and not is_added and type(value) in self.VALID_SUMMARY_TYPES:
                    found[name] = name
        return {**self.DEFAULT_COLUMNS, **found}

    def _format_errors(self, failed: Sequence[Trial]) -> list[str]:
        if not failed or not self._max_error_rows:
            return []
        lines = [f"Number of errored trials: {len(failed)}"]
        for trial in failed[: self._max_error_rows]:
            lines.append(f"  {trial.trial_name}: {formatting.first_line(trial.why)}; see {trial.local_path}")
        if len(failed) > self._max_error_rows:
            lines.append(f"  ... {len(failed) - self._max_error_rows} more")
        return lines

    def _format_value(self, value: Any) -> str:
        text = formatting.escape_unprintable(formatting.value(value) if value is not None else "")
        limit = self._max_column_length
        return text if len(text) <= limit else f"...{text[-(limit - 3) :] if limit > 3 else ''}"


class CLIReporter(_TableReporter):
    """Prints the trials as a table, every `max_report_frequency` seconds and at the end.

        CLIReporter(metric_columns=["loss", "training_iteration"], parameter_columns={"lr": "learning rate"})

    `metric_columns` and `parameter_columns` are names, or a dict with their headings; a nested one is `eval/loss`. By
    default all parameters are shown, and the first `infer_limit` numbers that trials report. At most
    `max_progress_rows` trials are listed, all of them at the end, and `max_error_rows` errors. Longer values than
    `max_column_length` are cut. `print_intermediate_tables=False` prints at the end only. `metric` and `mode` are those
    of the search by default; with `sort_by_metric` the best trials come first.
    """

    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        print(self.format_report(trials, done, *sys_info), flush=True)


class JupyterNotebookReporter(_TableReporter):
    """Like `CLIReporter`, in the output of a notebook cell; with `overwrite`, each table replaces the previous one."""

    def __init__(self, overwrite: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self._overwrite = arguments.check_bool("overwrite", overwrite)

    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        self.display(self.format_report(trials, done, *sys_info))

    def display(self, string: str) -> None:
        """Show a text in the cell's output."""
        show_in_notebook(string, overwrite=self._overwrite)

    @property
    def output_queue(self) -> None:
        """None: the driver is this process, and nothing is sent to another one."""
        return None


def _parse_columns(name: str, columns: Any) -> dict[str, str] | None:
    if columns is None or isinstance(columns, Mapping):
        return dict(columns) if columns is not None else None
    return {each: each for each in arguments.check_names(name, columns)}


def _add_column(kind: str, columns: dict[str, str], name: str, heading: str | None) -> dict[str, str]:
    if name in columns:
        raise ValueError(f"there is a column of {kind} {name!r} already")
    return {**columns, name: heading if heading is not None else name}


explain_module(__name__)
