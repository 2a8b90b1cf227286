"""`RunConfig(stop=...)` of a run: ends it at the first report that satisfies a condition.

The workers wait in each report for the answer, so no report follows the one that ended the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from paceline._control.events import Event
from paceline._control.report_aggregator import ReportAggregator, RunReport
from paceline._control.run import Run
from paceline._core.arguments import bad_value
from paceline._core.plain_values import get_metric

if TYPE_CHECKING:
    from paceline._control.controller import Controller

Condition = Callable[[str, dict[str, Any]], Any]
_EXPECTED = "a dict such as {'training_iteration': 10}, a function of an id and the metrics, or a Stopper"


def parse_stop(stop: Any) -> tuple[Condition, ...]:
    """Return the conditions of `RunConfig(stop=...)`, any of which ends a run. Raise for an invalid value."""
    if stop is None:
        return ()
    if isinstance(stop, list | tuple):
        return tuple(condition for each in stop for condition in parse_stop(each))
    if isinstance(stop, Mapping):
        limits = tuple(_flatten_limits(stop))
        return (lambda _, metrics: any(_reaches(metrics, name, limit) for name, limit in limits),)
    if isinstance(stop, type) or not callable(stop):
        raise bad_value("stop", _EXPECTED, stop)
    return (stop,)


class StopCondition:
    """An observer that ends the run, or releases the report that the workers wait in."""

    def __init__(self, stop: Any, run_name: str, past: Iterable[RunReport]) -> None:
        """`past`: the reports of earlier drivers, for conditions that count or remember."""
        self._conditions = parse_stop(stop)
        self._run_name = run_name
        self._aggregator = ReportAggregator()
        self._controller: Controller | None = None
        self.error: Exception | None = None
        """What a condition raised. The run was ended for it."""
        self.is_satisfied = False
        for report in past:
            self.is_satisfied = self._is_satisfied_by(report)

    def attach(self, controller: Controller) -> None:
        self._controller = controller
        controller.add_observer(self)

    def on_event(self, event: Event, run: Run) -> None:
        assert self._controller is not None
        for report in self._aggregator.add_event(event, run):
            if self._is_ending():
                return
            try:
                self.is_satisfied = self._is_satisfied_by(report)
            except Exception as error:  # noqa: BLE001  raised by `fit()`
                self.error = error
            if self._is_ending():
                self._controller.request_stop(now=False)
            else:
                self._controller.release_report(report.attempt, report.seq)

    def tick(self, run: Run, now: float) -> None:
        """Ask stoppers that look at the clock."""
        assert self._controller is not None
        if not self._is_ending() and self._stops_all():
            self.is_satisfied = True
            self._controller.request_stop(now=False)

    def _is_ending(self) -> bool:
        return self.is_satisfied or self.error is not None

    def _is_satisfied_by(self, report: RunReport) -> bool:
        metrics = {"training_iteration": report.seq, **report.metrics}
        # Ask all of them: some count the reports.
        answers = [bool(condition(self._run_name, metrics)) for condition in self._conditions]
        return any(answers) or self._stops_all()

    def _stops_all(self) -> bool:
        return any(condition.stop_all() for condition in self._conditions if hasattr(condition, "stop_all"))


def _flatten_limits(limits: Mapping[str, Any], path: str = "") -> Iterable[tuple[str, float]]:
    for name, limit in limits.items():
        if isinstance(limit, Mapping):
            yield from _flatten_limits(limit, f"{path}{name}/")
        elif not isinstance(name, str) or not isinstance(limit, int | float) or limit != limit:
            hint = "for other conditions use a function: stop=lambda run, metrics: metrics['loss'] < 0.1"
            raise bad_value(f"stop[{path + str(name)!r}]", "a number to reach", limit, hint)
        else:
            yield path + name, limit


def _reaches(metrics: dict[str, Any], name: str, limit: float) -> bool:
    value = get_metric(metrics, name)
    return isinstance(value, int | float) and value >= limit
